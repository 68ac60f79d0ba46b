// Builds the page into src/quad4fhe/serve/web/, and the package into dist/. The same source gives the same bytes.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

// Another folder may be given, for comparing.
const web = process.argv[2] === undefined ? new URL("../../src/quad4fhe/serve/web/", import.meta.url).pathname : `${process.argv[2]}/`;
const common = {
  bundle: true,
  format: "esm",
  target: "es2023",
  legalComments: "none",
  external: ["module", "fs", "path", "url"], // node-seal names them, and uses them only in Node
};

mkdirSync(web, { recursive: true });
// onnxruntime-web runs feature parts. Its code is small and becomes part of features.js; its WebAssembly module has 14 MB,
// so whoever serves a model with a feature part gets it from npm, and server and page take only this one.
const runtime = "onnxruntime-web";
const file = "dist/ort-wasm-simd-threaded.wasm";
const module = readFileSync(`node_modules/${runtime}/${file}`);
const { version } = JSON.parse(readFileSync(`node_modules/${runtime}/package.json`, "utf8"));
const sha256 = createHash("sha256").update(module).digest("hex");
writeFileSync(`${web}onnxruntime.json`, `${JSON.stringify({ package: runtime, version, file, bytes: module.length, sha256 }, null, 2)}\n`);
const pinned = { ONNXRUNTIME_SHA256: JSON.stringify(sha256) };
const entryPoints = { page: "src/page/page.ts", features: "src/features.ts" };
await build({ ...common, minify: true, define: pinned, entryPoints, outdir: web });
// A classic script: from a page opened from disk, a browser starts no worker that is a module.
const define = { "import.meta.url": '"seal"' };
await build({ ...common, format: "iife", define, minify: true, entryPoints: { worker: "src/worker.ts" }, outdir: web });
for (const name of ["index.html", "page.css"]) writeFileSync(web + name, readFileSync(`src/page/${name}`));
writeFileSync(`${web}seal.wasm`, readFileSync("node_modules/node-seal/dist/seal_throws.wasm"));
writeFileSync(`${web}one.html`, oneFile());
const notice = `Parts of these files come from other projects, under the MIT License below:
worker.js, seal.wasm, one.html: node-seal (Copyright below), with Microsoft SEAL (Copyright (c) Microsoft Corporation)
features.js: ${runtime} ${version} (Copyright (c) Microsoft Corporation)

${readFileSync("node_modules/node-seal/LICENSE", "utf8")}`;
writeFileSync(`${web}NOTICE.txt`, notice);

if (process.argv[2] !== undefined) process.exit();

rmSync("dist", { recursive: true, force: true });
const index = ["src/index.ts"];
await build({ ...common, entryPoints: index, outfile: "dist/index.js", external: [...common.external, "node-seal"] });
await build({ ...common, minify: true, entryPoints: index, outfile: "dist/quad4fhe.min.js" }); // one file, node-seal included
writeFileSync("dist/NOTICE.txt", notice.replace(/^worker.*$/m, (line) => line.replace(/^.*?:/, "quad4fhe.min.js:")).replace(/^features.*\n/m, ""));
execFileSync("node_modules/.bin/tsc", ["-p", "tsconfig.types.json"], { stdio: "inherit" });

/** The page as one file; `quad4fhe export --page` puts the server, the plan and the WebAssembly module into it. */
function oneFile() {
  const [html, css, page, worker] = ["index.html", "page.css", "page.js", "worker.js"].map((name) => readFileSync(web + name, "utf8"));
  const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  if (/<\/script|<!--/i.test(page + worker)) throw new Error("the code would end its own script element");
  const csp =
    `default-src 'none'; script-src ${hash(page)} 'wasm-unsafe-eval'; worker-src blob:; style-src ${hash(css)}; ` +
    "connect-src {{server}}; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types quad4fhe";
  const data = '<script type="application/json" id="config">{{config}}</script>\n<script type="text/plain" id="wasm">{{wasm}}</script>\n';
  return html
    .replace('<meta charset="utf-8">', () => `<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="${csp}">`)
    .replace('<link rel="stylesheet" href="page.css">', () => `<style>${css}</style>`)
    .replace(
      '<script type="module" src="page.js"></script>',
      () => `${data}<script type="text/plain" id="worker">${worker}</script>\n<script type="module">${page}</script>`,
    );
}
