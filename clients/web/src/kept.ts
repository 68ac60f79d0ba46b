/**
 * A key that outlives its tab, because the user asked for it: in IndexedDB, under AES-GCM.
 *
 * The key that wraps it can't be exported by any script, but it lies beside what it wraps. So this keeps the secret out
 * of plain sight on the disk, and not from whoever uses the browser's profile, nor from other code of this origin.
 */
import type { SavedKey } from "./client.ts";
import { fromHex } from "./container.ts";
import { AskError, messageOf } from "./errors.ts";
import type { Plan } from "./plan.ts";
import { joined } from "./seeds.ts";

const DATABASE = "quad4fhe";
const STORE = "keys-1"; // the number is the record's version
const ID_BYTES = 16;

interface Kept {
  readonly wrapping: CryptoKey;
  readonly iv: Uint8Array<ArrayBuffer>;
  readonly wrapped: ArrayBuffer;
}

/** Keep a key for its plan, in the place of an earlier one. */
export async function keep(plan: Plan, saved: SavedKey): Promise<void> {
  const wrapping = await crypto.subtle.generateKey({ name: "AES-GCM", length: 256 }, false, ["encrypt", "decrypt"]);
  const iv = crypto.getRandomValues(new Uint8Array(12));
  const open = joined([saved.id, saved.secret]);
  const wrapped = await crypto.subtle.encrypt(cipher(plan, iv), wrapping, open);
  open.fill(0);
  await inStore("readwrite", (store) => store.put({ wrapping, iv, wrapped } satisfies Kept, plan.sha256));
}

/** The key that was kept for a plan, or null; raises for a record that can't be read. */
export async function kept(plan: Plan): Promise<SavedKey | null> {
  // Opening a database would make it: where nothing was kept, nothing is to be found. Some browsers refuse to say.
  const databases = await indexedDB.databases().catch(() => []);
  if (!databases.some(({ name }) => name === DATABASE)) return null;
  const found: Kept | undefined = await inStore("readonly", (store) => store.get(plan.sha256));
  if (found === undefined) return null;
  const open = new Uint8Array(await crypto.subtle.decrypt(cipher(plan, found.iv), found.wrapping, found.wrapped));
  return { id: open.slice(0, ID_BYTES), secret: open.slice(ID_BYTES) };
}

/** Remove the key that was kept for a plan. */
export async function discard(plan: Plan): Promise<void> {
  await inStore("readwrite", (store) => store.delete(plan.sha256));
}

/** Remove every kept key of this origin. */
export async function forgetAll(): Promise<void> {
  await result(indexedDB.deleteDatabase(DATABASE));
}

function cipher(plan: Plan, iv: Uint8Array<ArrayBuffer>): AesGcmParams {
  return { name: "AES-GCM", iv, additionalData: joined([fromHex(plan.sha256)]) };
}

async function inStore<T>(mode: IDBTransactionMode, use: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const opening = indexedDB.open(DATABASE);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await result(opening);
  try {
    const transaction = database.transaction(STORE, mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(storageError(transaction.error));
    });
    const [value] = await Promise.all([result(use(transaction.objectStore(STORE))), done]);
    return value;
  } finally {
    database.close();
  }
}

function result<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(storageError(request.error));
  });
}

function storageError(error: unknown): AskError {
  return new AskError(`this browser keeps nothing for this page (${messageOf(error)}); the key ends with the tab`);
}
