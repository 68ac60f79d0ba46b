// Pages opened from disk (file:) may not start a Worker, so the search runs in a hidden frame there.
// The theme's offline plugin would fetch such a script from the network if no file of this name were given.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve())
      this.ready = this.load(url)
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script")
        script.src = url
        script.onload = done
        script.onerror = failed
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
