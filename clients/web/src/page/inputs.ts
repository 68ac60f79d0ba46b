/** What a person types or pastes: the features of the plan, or raw inputs, from which a feature part computes them. */
import { type Cells, type Columns, numbers } from "../csv.ts";
import { AskError } from "../errors.ts";
import type { FeatureTask, RawInput } from "../features.ts";
import { type Connection, featureName } from "../index.ts";
import type { Plan } from "../plan.ts";
import { Caller } from "./caller.ts";
import type { Place } from "./place.ts";

/** Seconds that the graph of a feature part, which the server chose, may take to start, and for each question and row. */
const LIMITS = { start: 60, question: 30, row: 2 };

/** A field of the form; the range is that of a feature, and raw inputs have none. */
export interface Field {
  readonly label: string;
  readonly range: readonly [low: number, high: number] | null;
}

export interface Inputs {
  readonly columns: Columns;
  readonly fields: readonly Field[];
  /** The features (n, d) of samples. */
  features(cells: Cells): Promise<Float64Array[]>;
}

/** The inputs of a plan; a feature part is fetched, checked and loaded now. */
export async function inputsOf(server: Connection, place: Place): Promise<Inputs> {
  return server.plan.featurePart === null ? ofPlan(server.plan) : ofPart(server, place);
}

function ofPlan(plan: Plan): Inputs {
  const fields = Array.from({ length: plan.features }, (_, i): Field => ({
    label: featureName(plan, i),
    range: [plan.low[i]!, plan.high[i]!],
  }));
  const columns = { names: plan.featureNames, count: plan.features, text: false };
  return { columns, fields, features: async (cells) => numbers(cells) };
}

async function ofPart(server: Connection, place: Place): Promise<Inputs> {
  if (place.features === null) {
    throw new AskError("this model has a feature part, which the page as one file can't run; use the page of its server");
  }
  const [graph, wasm] = await Promise.all([server.featurePart(), place.features.wasm()]);
  const caller = new Caller<FeatureTask>(place.features.worker());
  const raw = (await caller.ask({ kind: "start", wasm, graph }, [wasm, graph.buffer], LIMITS.start)) as readonly RawInput[];
  const names = raw.flatMap(({ name, sides }) => {
    const width = sides.reduce((product, side) => product * side, 1);
    return width === 1 ? [name] : Array.from({ length: width }, (_, i) => `${name} ${i + 1}`);
  });
  const text = raw.some(({ type }) => type === "string");
  return {
    columns: { names, count: names.length, text },
    fields: names.map((label) => ({ label, range: null })),
    features: async ({ rows }) => {
      const limit = LIMITS.question + LIMITS.row * rows.length;
      return (await caller.ask({ kind: "run", rows }, [], limit)) as Float64Array[];
    },
  };
}
