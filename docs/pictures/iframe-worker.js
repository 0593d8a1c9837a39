// A browser starts no worker for a page that was opened from a disk, and the search of the theme is a worker. Here the
// worker's script runs in a hidden frame instead. The theme's own remedy would be fetched from another host.
class IFrameWorker extends EventTarget {
  constructor(address) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.appendChild(frame);
    this.inside = frame.contentWindow;
    this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    this.ready = new Promise((resolve) => {
      const script = this.inside.document.createElement("script");
      script.src = new URL(address, location).href;
      script.onload = resolve;
      this.inside.document.body.appendChild(script);
    });
  }

  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (location.protocol === "file:") {
  window.IFrameWorker = IFrameWorker; // by this name the theme knows that the worker has a frame
  window.Worker = IFrameWorker;
}
