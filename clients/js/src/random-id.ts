const ID_BYTES = 16;

/** An id that no other client has. `crypto.randomUUID` is absent on pages of plain http, such as http://192.168.1.2. */
export const randomId = (): string => Array.from(crypto.getRandomValues(new Uint8Array(ID_BYTES)), (byte) => byte.toString(16).padStart(2, '0')).join('');
