/**
 * SHAKE128 (FIPS 202), which browsers do not offer. It expands public seeds only; nothing secret passes through it.
 *
 * A lane of 64 bits is two words of 32: word 2i is the low half of lane i.
 */

const RATE = 168; // bytes of the state that are read or written between permutations
const LANES = 25;

/** `length` bytes of output for this message. */
export function shake128(message: Uint8Array, length: number): Uint8Array<ArrayBuffer> {
  const state = new Uint32Array(2 * LANES);
  const padded = new Uint8Array((Math.floor(message.length / RATE) + 1) * RATE);
  padded.set(message);
  padded[message.length]! ^= 0x1f;
  padded[padded.length - 1]! ^= 0x80;
  const input = new DataView(padded.buffer);
  for (let start = 0; start < padded.length; start += RATE) {
    for (let i = 0; i < RATE / 4; i++) state[i]! ^= input.getUint32(start + 4 * i, true);
    permute(state);
  }
  const out = new Uint8Array(Math.ceil(length / RATE) * RATE);
  const output = new DataView(out.buffer);
  for (let start = 0; start < out.length; start += RATE) {
    if (start > 0) permute(state);
    for (let i = 0; i < RATE / 4; i++) output.setUint32(start + 4 * i, state[i]!, true);
  }
  return out.slice(0, length);
}

const { constants, rotations, places } = tables();
const parity = new Uint32Array(10);
const moved = new Uint32Array(2 * LANES);

// Without arrays that are made and taken apart inside the rounds: that would take ten times as long.
function permute(state: Uint32Array): void {
  for (let round = 0; round < 24; round++) {
    for (let i = 0; i < 10; i++) parity[i] = state[i]! ^ state[i + 10]! ^ state[i + 20]! ^ state[i + 30]! ^ state[i + 40]!;
    for (let x = 0; x < 10; x += 2) {
      const left = x === 0 ? 8 : x - 2;
      const right = x === 8 ? 0 : x + 2;
      const low = parity[left]! ^ ((parity[right]! << 1) | (parity[right + 1]! >>> 31));
      const high = parity[left + 1]! ^ ((parity[right + 1]! << 1) | (parity[right]! >>> 31));
      for (let lane = x; lane < 2 * LANES; lane += 10) {
        state[lane]! ^= low;
        state[lane + 1]! ^= high;
      }
    }
    for (let lane = 0; lane < LANES; lane++) {
      const turn = rotations[lane]!;
      const swap = turn >>> 5;
      const low = state[2 * lane + swap]!;
      const high = state[2 * lane + 1 - swap]!;
      const by = turn & 31;
      const to = 2 * places[lane]!;
      moved[to] = by === 0 ? low : (low << by) | (high >>> (32 - by));
      moved[to + 1] = by === 0 ? high : (high << by) | (low >>> (32 - by));
    }
    for (let row = 0; row < 2 * LANES; row += 10) {
      for (let i = 0; i < 6; i++) state[row + i] = moved[row + i]! ^ (~moved[row + i + 2]! & moved[row + i + 4]!);
      for (let i = 6; i < 8; i++) state[row + i] = moved[row + i]! ^ (~moved[row + i + 2]! & moved[row + i - 6]!);
      for (let i = 8; i < 10; i++) state[row + i] = moved[row + i]! ^ (~moved[row + i - 8]! & moved[row + i - 6]!);
    }
    state[0]! ^= constants[2 * round]!;
    state[1]! ^= constants[2 * round + 1]!;
  }
}

/** The round constants, rotations and places, as FIPS 202 defines them. */
function tables(): { constants: Uint32Array; rotations: Uint8Array; places: Uint8Array } {
  const constants = new Uint32Array(48);
  for (let round = 0, register = 1; round < 24; round++) {
    for (let j = 0; j < 7; j++) {
      const bit = 2 ** j - 1;
      if (register & 1) constants[2 * round + (bit >= 32 ? 1 : 0)]! |= 1 << bit % 32;
      register = register & 0x80 ? (register << 1) ^ 0x171 : register << 1;
    }
  }
  const rotations = new Uint8Array(LANES);
  const places = new Uint8Array(LANES);
  for (let t = 0, x = 1, y = 0; t < 24; t++) {
    rotations[x + 5 * y] = (((t + 1) * (t + 2)) / 2) % 64;
    [x, y] = [y, (2 * x + 3 * y) % 5];
  }
  for (let x = 0; x < 5; x++) for (let y = 0; y < 5; y++) places[x + 5 * y] = y + 5 * ((2 * x + 3 * y) % 5);
  return { constants, rotations, places };
}
