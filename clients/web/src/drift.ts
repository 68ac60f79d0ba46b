/**
 * Drift: whether questions still look like the hold-out rows that a promise about new inputs was counted on.
 *
 * As `quad4fhe.proof.drift`: a conformal test martingale over margins, decisions, and how many samples lie outside the
 * calibration box. If questions are drawn from where the hold-out rows came from, the probability that a watch ever raises
 * an alarm is at most 1%. Nothing of it leaves the client.
 */
import type { Answer } from "./client.ts";
import { AskError } from "./errors.ts";
import { cryptographic, type Random } from "./embedding.ts";
import type { Plan, Reference } from "./plan.ts";

const FALSE_ALARMS = 0.01;
const WINDOW = 2000; // after so many questions the bets start again, so that a late drift is not outweighed
const CELLS = 16; // of p-values, in the finest of the histograms that bet on them
const BETS = [2, 4, 8, 16] as const;
const WATCHED = ["margins", "decisions", "box"] as const;

export type Alarm = (typeof WATCHED)[number];

const ALARMS: Readonly<Record<Alarm, string>> = {
  margins: "their margins are not distributed like those of the hold-out rows",
  decisions: "their decisions are not distributed like those of the hold-out rows",
  box: "not as many of them lie outside the box of the calibration data as of the hold-out rows",
};

/** One thing that is watched: in this window, how many questions are in each category, p-values by cell, and bets. */
export class Stream {
  readonly window: number;
  rows = 0;
  readonly counts: number[];
  readonly cells: number[] = new Array<number>(CELLS).fill(0);
  readonly capital: number[] = BETS.map(() => 0);

  constructor(categories: number, window = 1) {
    this.window = window;
    this.counts = new Array<number>(categories).fill(0);
  }

  /**
   * Bet on one question, given hold-out rows by category; returns the logarithm of the capital then.
   *
   * The p-value is the share of hold-out rows and earlier questions in a lower category, with ties broken by `draw`. Each
   * bet is a histogram of the earlier p-values, a density, so its capital is a martingale, and so is the mean of the bets.
   */
  observe(known: readonly number[], category: number, draw: number, counted: boolean): number {
    const of = known.map((count, i) => count + this.counts[i]!);
    const level = of[category]!;
    const below = sum(of.slice(0, category));
    const seen = sum(this.counts);
    const p = (below + draw * (level + 1)) / (sum(known) + seen + 1);
    const cell = Math.min(Math.floor(p * CELLS), CELLS - 1);
    for (const [at, cells] of BETS.entries()) {
      const width = CELLS / cells;
      const first = Math.floor(cell / width) * width;
      const count = sum(this.cells.slice(first, first + width));
      if (counted) this.capital[at]! += Math.log((cells * (count + 1)) / (seen + cells));
    }
    this.rows++;
    if (counted) {
      this.counts[category]!++;
      this.cells[cell]!++;
    }
    const most = Math.max(...this.capital);
    return most + Math.log(sum(this.capital.map((each) => Math.exp(each - most))) / BETS.length);
  }
}

/** Compares questions with the hold-out rows of a promise, call after call; for plans with a `reference`. */
export class Watch {
  readonly #reference: Reference;
  readonly #known: readonly (readonly number[])[];
  readonly #streams: Stream[];
  readonly #random: Random;
  #seen = 0;
  #alarm: Alarm | null = null;

  constructor(plan: Plan, random: Random = cryptographic) {
    if (plan.reference === null) throw new AskError("this plan has no hold-out rows to compare questions with");
    const { margins, classes, outside, low, high } = plan.reference;
    this.#reference = { ...plan.reference, low: low ?? plan.low, high: high ?? plan.high };
    this.#known = [margins, classes, [sum(classes), outside]];
    this.#streams = this.#known.map((known) => new Stream(known.length));
    this.#random = random;
  }

  get alarm(): Alarm | null {
    return this.#alarm;
  }

  /** The warning in one line; null without an alarm. */
  get sentence(): string | null {
    if (this.#alarm === null) return null;
    return (
      `the promise about new inputs was made for other inputs than these: ${ALARMS[this.#alarm]} ` +
      `(${this.#seen} questions so far; false alarms: at most ${100 * FALSE_ALARMS}%)`
    );
  }

  /**
   * Take in the answers of one call, and its samples as they were before clipping.
   *
   * `refused` says that samples outside the plan's box get no decision, so their number is not compared. The answers of a
   * call are taken in random order, at most 2,000 of them: a file may be sorted, and that is no drift.
   */
  observe(answers: readonly Answer[], rows: readonly ArrayLike<number>[], refused: boolean): void {
    const { edges, low, high } = this.#reference;
    for (const n of shuffled(answers.length, this.#random).slice(0, WINDOW)) {
      const { decision, scores } = answers[n]!;
      if (scores === null) continue; // a plan of decisions only has no reference
      const inside = Array.from(rows[n]!).every((value, i) => value >= low![i]! && value <= high![i]!);
      this.#bet(0, edges.filter((edge) => edge <= scores.margin).length, inside);
      this.#bet(1, decision, inside);
      if (!refused) this.#bet(2, inside ? 0 : 1, true);
      this.#seen++;
    }
  }

  #bet(at: number, category: number, counted: boolean): void {
    const [known, stream] = [this.#known[at]!, this.#streams[at]!];
    if (sum(known) === 0) return;
    const capital = stream.observe(known, category, this.#random(1)[0]!, counted);
    // Three streams, and windows 1, 2, ... with a share of 1 / (w (w + 1)) each: together at most 1.
    const enough = Math.log((WATCHED.length * stream.window * (stream.window + 1)) / FALSE_ALARMS);
    if (capital >= enough) this.#alarm ??= WATCHED[at]!;
    if (stream.rows >= WINDOW) this.#streams[at] = new Stream(known.length, stream.window + 1);
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, each) => total + each, 0);
}

/** The numbers below `count` in random order. */
function shuffled(count: number, random: Random): number[] {
  const out = Array.from({ length: count }, (_, i) => i);
  const draws = random(count);
  for (let i = count - 1; i > 0; i--) {
    const j = Math.floor(draws[i]! * (i + 1));
    [out[i], out[j]] = [out[j]!, out[i]!];
  }
  return out;
}
