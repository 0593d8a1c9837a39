// Questions to the server that serves this page, and to nobody else.

export async function ask(path) {
  const response = await fetch(path, { cache: "no-cache" });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error ?? response.statusText), { answered: true });
  return answer;
}
