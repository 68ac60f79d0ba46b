/** Feature parts from strangers: graphs written here byte by byte, as ONNX's protobuf has them. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { AskError } from "../src/errors.ts";
import { checkGraph } from "../src/graph.ts";
import { Caller } from "../src/page/caller.ts";

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value % 128) + 128, ...varint(Math.floor(value / 128))];
}

/** A field of bytes, text or a message. */
function field(number: number, value: string | readonly number[]): number[] {
  const bytes = typeof value === "string" ? [...new TextEncoder().encode(value)] : value;
  return [...varint(8 * number + 2), ...varint(bytes.length), ...bytes];
}

const whole = (number: number, value: number) => [...varint(8 * number), ...varint(value)];
const node = (operation: string, ...more: number[][]) => field(1, [...field(1, "x"), ...field(2, "y"), ...field(4, operation), ...more.flat()]);
const model = (...graph: number[][]) => [...whole(1, 8), ...field(7, [...graph.flat(), ...field(2, "name")])];
const check = (bytes: readonly number[]) => checkGraph(Uint8Array.from(bytes));

test("plain operations pass, of every domain that onnxruntime has", () => {
  const attribute = field(5, [...field(1, "axis"), ...whole(3, 300), ...whole(20, 2)]);
  const fixed = field(5, [...field(1, "alpha"), 8 * 2 + 5, 0, 0, 128, 63, ...whole(20, 1)]); // a float of fixed width
  check(model(node("Gemm", attribute, fixed), node("Scaler", field(7, "ai.onnx.ml")), field(5, [...whole(1, 2), ...field(9, [1, 2, 3, 4])])));
});

test("subgraphs, random numbers, other domains, own functions and other files are refused", () => {
  const cases: [readonly number[], RegExp][] = [
    [model(node("Loop")), /has the operation Loop, which runs a subgraph/],
    [model(node("Relu"), node("If")), /operation If/],
    [model(node("Custom", field(5, field(6, node("Relu"))))), /runs a subgraph/],
    [model(node("Custom", field(5, field(11, node("Relu"))))), /runs a subgraph/],
    [model(node("Custom", field(5, whole(20, 5)))), /runs a subgraph/],
    [model(node("RandomNormalLike")), /RandomNormalLike, which draws random numbers/],
    [model(node("Relu", field(7, "evil"))), /not standard ONNX/],
    [[...model(node("Relu")), ...field(25, field(1, "mine"))], /functions of its own/],
    [model(field(5, whole(14, 1))), /another file/],
    [model(field(5, field(13, field(1, "location")))), /another file/],
    [model(field(15, field(1, whole(14, 1)))), /another file/], // the values of a sparse initializer
    [model(field(15, field(2, whole(14, 1)))), /another file/], // its indices
    ...[5, 10].map((place): [readonly number[], RegExp] => [model(node("Constant", field(5, field(place, whole(14, 1))))), /another file/]),
    ...[22, 23].map((place): [readonly number[], RegExp] => [model(node("Constant", field(5, field(place, field(1, whole(14, 1)))))), /another file/]),
    [[...model(node("Relu")), ...field(20, field(1, "x"))], /training graph/],
    [[...model(node("Relu")), ...field(7, node("Scan"))], /operation Scan/], // a second graph is merged with the first
  ];
  for (const [bytes, wanted] of cases) assert.throws(() => check(bytes), (error: Error) => error instanceof AskError && wanted.test(error.message), String(wanted));
});

test("what is no graph is refused, and never read beyond its end", () => {
  for (const bytes of [[], [1], [255, 255], field(7, [10, 200]), whole(7, 1), [8 * 7 + 3], [8 * 7 + 2, 128], Array(20).fill(255)]) {
    assert.throws(() => check(bytes), /is no ONNX graph; nothing was sent$/);
  }
});

test("a feature part that takes too long is ended with its worker", async () => {
  const worker = { ended: false, postMessage: () => {}, terminate: () => { worker.ended = true; } };
  const caller = new Caller<string>(worker as unknown as Worker);
  await assert.rejects(caller.ask("run", [], 0.01), /needed more than 0.01 seconds and was ended/);
  assert.equal(worker.ended, true);
  await assert.rejects(caller.ask("run"), /was ended/);
});
