/** Samples from text: comma, semicolon or tab between values, with or without a first row of names. */
import { AskError } from "./errors.ts";
import type { Plan } from "./plan.ts";

export function readTable(text: string, plan: Plan): Float64Array[] {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  if (lines.length === 0) throw new AskError("the table is empty; paste one sample per line");
  const separator = [",", ";", "\t"].find((mark) => lines[0]!.includes(mark)) ?? ",";
  const cells = lines.map((line) => line.split(separator).map((cell) => cell.trim().replace(/^"(.*)"$/, "$1")));
  // A first row with some numbers is a sample with mistakes: taken for names, it would get no answer, and nobody would notice.
  const named = cells[0]!.every((cell) => cell === "" || Number.isNaN(Number(cell))) || byNames(cells[0]!, plan);
  const header = named ? cells.shift()! : null;
  const columns = header === null || plan.featureNames === null ? null : byName(header, plan.featureNames);
  return cells.map((row, n) => {
    const line = n + 1 + (header === null ? 0 : 1);
    const chosen = columns === null ? row : columns.map((column) => row[column] ?? "");
    if (chosen.length !== plan.features) {
      throw new AskError(`line ${line} has ${chosen.length} values, the model has ${plan.features} features`);
    }
    return Float64Array.from(chosen, (cell, i) => {
      const value = Number(cell);
      if (cell === "" || !Number.isFinite(value)) {
        throw new AskError(`line ${line}, column ${header?.[columns?.[i] ?? i] ?? i + 1}: "${cell}" is not a number`);
      }
      return value;
    });
  });
}

function byNames(row: readonly string[], plan: Plan): boolean {
  return plan.featureNames?.every((name) => row.includes(name)) ?? false;
}

/** The column of each feature; a missing one is named. */
function byName(header: readonly string[], names: readonly string[]): number[] {
  return names.map((name) => {
    const column = header.indexOf(name);
    if (column < 0) throw new AskError(`the table has no column "${name}"; its columns are ${header.join(", ")}`);
    return column;
  });
}

/**
 * One line per sample: its number, decision, margin, and logits.
 *
 * Names come from the server. One that begins like a formula gets an apostrophe: a spreadsheet would compute it, and a
 * formula can send the other cells away.
 */
export function writeTable(header: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  const quoted = (cell: string | number) => {
    const text = typeof cell === "string" && /^[\s=+\-@|]/.test(cell) ? `'${cell}` : String(cell);
    return /[",;\r\n\t]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [header, ...rows].map((row) => row.map(quoted).join(",")).join("\n") + "\n";
}
