/** Samples from text: comma, semicolon or tab between values, with or without a first row of names. */
import { AskError } from "./errors.ts";

/** What a table must have: so many columns, with these names where they are known, and perhaps text in some. */
export interface Columns {
  readonly names: readonly string[] | null;
  readonly count: number;
  readonly text: boolean;
}

/** Samples as text, and words for cell i of sample n, for messages. */
export interface Cells {
  readonly rows: readonly (readonly string[])[];
  readonly name: (n: number, i: number) => string;
}

/** The numbers that cells hold; an empty cell is none. */
export function numbers({ rows, name }: Cells): Float64Array[] {
  return rows.map((row, n) =>
    Float64Array.from(row, (cell, i) => {
      const value = Number(cell); // of the text, because Firefox keeps only 15 digits in valueAsNumber
      if (cell.trim() === "" || !Number.isFinite(value)) throw new AskError(`${name(n, i)} is not a number`);
      return value;
    }),
  );
}

/** The cells of a table, in the order of the wanted columns. */
export function readCells(text: string, wanted: Columns): Cells {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  if (lines.length === 0) throw new AskError("the table is empty; paste one sample per line");
  // A line of a single text is that text, commas included.
  const separator = wanted.text && wanted.count === 1 ? null : ([",", ";", "\t"].find((mark) => lines[0]!.includes(mark)) ?? ",");
  const cells = lines.map((line) => split(line, separator));
  const header = isHeader(cells[0]!, wanted) ? cells.shift()! : null;
  const columns = header === null || wanted.names === null ? null : byName(header, wanted.names);
  const line = (n: number) => n + 1 + (header === null ? 0 : 1);
  const rows = cells.map((row, n) => {
    const chosen = columns === null ? row : columns.map((column) => row[column] ?? "");
    if (chosen.length !== wanted.count) {
      throw new AskError(`line ${line(n)} has ${chosen.length} values, the model has ${wanted.count} ${wanted.text ? "inputs" : "features"}`);
    }
    return chosen;
  });
  return { rows, name: (n, i) => `line ${line(n)}, column ${header?.[columns?.[i] ?? i] ?? i + 1}: "${rows[n]![i]}"` };
}

/** The cells of a line; a cell in quotes may hold the separator, and quotes twice. */
function split(line: string, separator: string | null): string[] {
  const quoted = /^\s*"((?:[^"]|"")*)"\s*/y;
  const out: string[] = [];
  for (let at = 0; at <= line.length; ) {
    quoted.lastIndex = 0;
    const rest = line.slice(at);
    const found = quoted.exec(rest);
    const whole = found !== null && (found[0].length === rest.length || rest[found[0].length] === separator);
    const end = whole ? found[0].length : separator === null ? rest.length : rest.indexOf(separator);
    const length = end < 0 ? rest.length : end;
    out.push(whole ? found[1]!.replaceAll('""', '"') : rest.slice(0, length).trim());
    at += length + 1;
  }
  return out;
}

/**
 * A first row with some numbers is a sample with mistakes: taken for names, it would get no answer, and nobody would
 * notice. Where values may be text, only the names themselves are a header.
 */
function isHeader(row: readonly string[], wanted: Columns): boolean {
  if (wanted.names?.every((name) => row.includes(name))) return true;
  return !wanted.text && row.every((cell) => cell === "" || Number.isNaN(Number(cell)));
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
