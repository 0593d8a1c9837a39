// A browser starts no worker for a page that was opened from a disk, and the search of the theme is a worker. Here the
// worker's script runs in a hidden frame instead. The theme's own remedy would be fetched from another host.
class IFrameWorker {
  constructor(address) {
    const frame = document.createElement("iframe");
    this.frame = frame;
    frame.hidden = true;
    document.body.appendChild(frame);
    this.inside = frame.contentWindow;
    this.inside.postMessage = (message) => {
      const data = structuredClone(message); // each side may change what it has got
      setTimeout(() => this.onmessage?.(new MessageEvent("message", { data })));
    };
    this.ready = new Promise((resolve) => {
      const script = this.inside.document.createElement("script");
      script.src = new URL(address, location).href;
      script.onload = resolve;
      this.inside.document.body.appendChild(script);
    });
  }

  postMessage(message) {
    const data = structuredClone(message);
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") {
  window.Worker = IFrameWorker;
}
