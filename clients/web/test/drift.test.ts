/** The watch for drift: the vector that Python shares, and how often it warns with and without drift. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import type { Answer } from "../src/client.ts";
import { Stream, Watch } from "../src/drift.ts";
import { readPlan } from "../src/plan.ts";

const read = (name: string) => JSON.parse(readFileSync(new URL(`../../../tests/vectors/${name}.json`, import.meta.url), "utf8"));
const { batch } = read("plans");

test("a stream bets as the vector says", () => {
  const wanted = read("drift");
  const stream = new Stream(wanted.known.length);
  for (let i = 0; i < wanted.queries; i++) {
    const draw = ((2654435761 * i + 12345) % 1000003) / 1000003;
    stream.observe(wanted.known, (i * i + Math.floor(i / 3)) % 4, draw, i % 5 !== 2);
  }
  assert.deepEqual([stream.counts, stream.cells], [wanted.counts, wanted.cells]);
  for (const [i, capital] of stream.capital.entries()) assert.ok(Math.abs(capital - wanted.capital[i]) < 1e-9);
});

/** Numbers in [0, 1) that are the same in every run. */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** A plan whose hold-out rows have margins even in [0, 1) and two classes of equal size. */
function plan() {
  const edges = Array.from({ length: 31 }, (_, i) => (i + 1) / 32);
  const reference = { edges, margins: Array(32).fill(20), classes: [320, 320], outside: 0 };
  return readPlan({ ...batch.plan, reference }, batch.sha256);
}

/** After how many calls of ten questions there is an alarm; null if there is none in 100. */
function alarm(seed: number, margin: (draw: number) => number, outside = 0): string | null {
  const next = seeded(seed);
  const watch = new Watch(plan(), (count) => Float64Array.from({ length: count }, next));
  for (let call = 0; call < 100 && watch.alarm === null; call++) {
    const answers = Array.from({ length: 10 }, (): Answer => ({
      decision: next() < 0.5 ? 0 : 1,
      scores: { logits: Float64Array.of(0), margin: margin(next()), certain: true, reliable: null },
    }));
    const rows = answers.map(() => (next() < outside ? [9, 0] : [0, 0]));
    watch.observe(answers, rows, false);
  }
  return watch.alarm;
}

test("there is an alarm where margins or places change, and none where they do not", () => {
  const alarms = Array.from({ length: 20 }, (_, seed) => alarm(seed + 1, (draw) => draw));
  assert.deepEqual(alarms, Array(20).fill(null)); // the same in every run
  assert.equal(alarm(1, (draw) => draw / 2), "margins");
  assert.equal(alarm(1, (draw) => draw, 0.3), "box");
});

test("a watch says what changed, and a summary that contradicts itself is refused", () => {
  const watch = new Watch(plan());
  assert.equal(watch.sentence, null);
  const answers = Array.from({ length: 300 }, (): Answer => ({ decision: 0, scores: { logits: Float64Array.of(0), margin: 0.5, certain: true, reliable: null } }));
  watch.observe(answers, answers.map(() => [0, 0]), true);
  assert.match(watch.sentence!, /^the promise about new inputs was made for other inputs than these: .* \(300 questions so far; false alarms: at most 1%\)$/);
  for (const change of [{ classes: [1, 2] }, { edges: [1] }, { margins: Array(32).fill(-1) }, { box: [[0], [1]] }]) {
    const reference = { edges: Array(31).fill(1), margins: Array(32).fill(1), classes: [16, 16], outside: 0, ...change };
    assert.throws(() => readPlan({ ...batch.plan, reference }, batch.sha256), /the server's plan is refused/);
  }
  assert.throws(() => new Watch(readPlan(batch.plan, batch.sha256)), /no hold-out rows/);
});
