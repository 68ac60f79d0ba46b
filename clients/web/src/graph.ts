/**
 * What a feature part, an ONNX graph from a server, may not do: the rules of `quad4fhe.feature_part.check_graph`.
 *
 * A loop could run for a time that depends on the raw input, and whoever waits for the request could see that. Only the
 * parts of the file that decide this are read; onnxruntime reads the rest.
 */
import { AskError } from "./errors.ts";

const SUBGRAPHS = new Set(["If", "Loop", "Scan", "SequenceMap"]);
const RANDOM = new Set(["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"]);
const DOMAINS = new Set(["", "ai.onnx", "ai.onnx.ml", "com.microsoft"]);

// Numbers of fields in ONNX's messages (onnx.proto).
const MODEL = { graph: 7, training: 20, functions: 25 };
const GRAPH = { node: 1, initializer: 5, sparse: 15 };
const NODE = { operation: 4, attribute: 5, domain: 7 };
const ATTRIBUTE = { tensor: 5, graph: 6, tensors: 10, graphs: 11, type: 20, sparse: 22, sparses: 23 };
const GRAPH_TYPES: readonly unknown[] = [5n, 10n];
const TENSOR = { external: 13, location: 14 };

/** Raise AskError for a graph that runs subgraphs, draws random numbers, uses other domains, or reads other files. */
export function checkGraph(bytes: Uint8Array): void {
  let graphs = 0;
  for (const [field, model] of fields(bytes)) {
    if (field === MODEL.functions) refuse("defines functions of its own");
    if (field === MODEL.training) refuse("holds a training graph");
    if (field !== MODEL.graph) continue;
    graphs++;
    for (const [part, value] of fields(message(model))) {
      if (part === GRAPH.node) checkNode(message(value));
      if (part === GRAPH.initializer) checkTensor(message(value));
      if (part === GRAPH.sparse) checkSparse(message(value));
    }
  }
  if (graphs === 0) refuse("is no ONNX graph");
}

function checkNode(node: Uint8Array): void {
  for (const [field, value] of fields(node)) {
    if (field === NODE.operation && SUBGRAPHS.has(text(value))) refuse(`has the operation ${text(value)}, which runs a subgraph`);
    if (field === NODE.operation && RANDOM.has(text(value))) refuse(`has the operation ${text(value)}, which draws random numbers`);
    if (field === NODE.domain && !DOMAINS.has(text(value))) refuse("has an operation that is not standard ONNX");
    if (field !== NODE.attribute) continue;
    for (const [part, inner] of fields(message(value))) {
      const isGraph = part === ATTRIBUTE.graph || part === ATTRIBUTE.graphs || (part === ATTRIBUTE.type && GRAPH_TYPES.includes(inner));
      if (isGraph) refuse("has an operation that runs a subgraph");
      if (part === ATTRIBUTE.tensor || part === ATTRIBUTE.tensors) checkTensor(message(inner));
      if (part === ATTRIBUTE.sparse || part === ATTRIBUTE.sparses) checkSparse(message(inner));
    }
  }
}

function checkTensor(tensor: Uint8Array): void {
  for (const [field, value] of fields(tensor)) {
    if (field === TENSOR.external || (field === TENSOR.location && value !== 0n)) refuse("reads its weights from another file");
  }
}

/** A sparse tensor has two fields, both tensors: values and indices. */
function checkSparse(sparse: Uint8Array): void {
  for (const [field, value] of fields(sparse)) {
    if (field === 1 || field === 2) checkTensor(message(value));
  }
}

type Value = bigint | Uint8Array;

/** The fields of a protobuf message, each with its number; values of fixed width are left out, none matters here. */
function* fields(bytes: Uint8Array): Generator<[field: number, value: Value]> {
  let at = 0;
  const varint = (): bigint => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      const byte = bytes[at++];
      if (byte === undefined) refuse("is no ONNX graph");
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    return refuse("is no ONNX graph");
  };
  while (at < bytes.length) {
    const key = varint();
    const [field, kind] = [Number(key >> 3n), Number(key & 7n)];
    if (kind === 0) yield [field, varint()];
    else {
      const length = kind === 1 ? 8 : kind === 5 ? 4 : kind === 2 ? Number(varint()) : Number.NaN;
      if (!(at + length <= bytes.length)) refuse("is no ONNX graph");
      if (kind === 2) yield [field, bytes.subarray(at, at + length)];
      at += length;
    }
  }
}

function message(value: Value): Uint8Array {
  return typeof value === "bigint" ? refuse("is no ONNX graph") : value;
}

function text(value: Value): string {
  return new TextDecoder().decode(message(value));
}

function refuse(why: string): never {
  throw new AskError(`the server's feature part is refused: it ${why}; nothing was sent`);
}
