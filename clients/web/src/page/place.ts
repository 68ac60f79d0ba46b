/** Where the page runs: served by a quad4fhe server, or opened from disk as one file that carries everything. */
import { AskError } from "../errors.ts";
import type { ConnectOptions } from "../index.ts";
import { readJson } from "../plan.ts";

/** The SHA-256 of onnxruntime-web's WebAssembly module; the build fills it in. */
declare const ONNXRUNTIME_SHA256: string;

export interface Place extends Pick<ConnectOptions, "url" | "model" | "layout" | "pinned"> {
  worker(): Worker;
  wasm(): Promise<ArrayBuffer>;
  /** How feature parts are run; null where they can't be. */
  readonly features: { worker(): Worker; wasm(): Promise<ArrayBuffer> } | null;
}

const policy = globalThis.trustedTypes?.createPolicy("quad4fhe", {
  createScriptURL(url) {
    if (url !== "worker.js" && url !== "features.js" && !url.startsWith("blob:")) throw new TypeError("this page runs no other script");
    return url;
  },
});
const trusted = (url: string) => (policy === undefined ? url : policy.createScriptURL(url)) as string;

export function findPlace(): Place {
  const config = document.getElementById("config");
  return config === null ? served() : onDisk(readJson(config.textContent) as Config);
}

function served(): Place {
  const query = new URLSearchParams(location.search);
  return {
    url: new URL("../", location.href).href,
    model: query.get("model") ?? undefined,
    layout: query.get("layout") ?? undefined,
    worker: () => new Worker(trusted("worker.js")),
    features: {
      worker: () => new Worker(trusted("features.js"), { type: "module" }),
      async wasm() {
        const answer = await fetch(`onnxruntime-${ONNXRUNTIME_SHA256.slice(0, 16)}.wasm`);
        if (!answer.ok) throw new AskError("the server has no onnxruntime-web for this page; its operator adds it with serve --onnxruntime");
        return answer.arrayBuffer();
      },
    },
    wasm: async () => (await fetch("seal.wasm")).arrayBuffer(),
  };
}

interface Config {
  readonly url: string;
  readonly plan: unknown;
  readonly sha256: string;
}

function onDisk(config: Config): Place {
  return {
    url: config.url,
    features: null, // onnxruntime-web would make the file 20 MB larger
    pinned: { plan: config.plan, sha256: config.sha256 },
    worker() {
      const code = new Blob([inline("worker")], { type: "text/javascript" });
      return new Worker(trusted(URL.createObjectURL(code)));
    },
    wasm: async () => Uint8Array.from(atob(inline("wasm")), (character) => character.charCodeAt(0)).buffer,
  };
}

function inline(id: string): string {
  return document.getElementById(id)!.textContent;
}
