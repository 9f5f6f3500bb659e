//! Data that is collected for one append.

/// Messages of a JSON stream, or bytes of another, up to a bound.
#[derive(Debug)]
pub(crate) struct AppendBatch {
    json: bool,
    body: Vec<u8>,
    units: u64,
    bytes: u64,
}

impl AppendBatch {
    pub(crate) fn new(json: bool) -> Self {
        AppendBatch {
            json,
            body: Vec::new(),
            units: 0,
            bytes: 0,
        }
    }

    /// Whether a message has room, or is the first one.
    pub(crate) fn has_room(&self, message: &str) -> bool {
        self.units == 0 || self.body.len() + message.len() + 2 <= BATCH_BYTES
    }

    /// Adds a message of a JSON stream.
    pub(crate) fn add_message(&mut self, message: &str) {
        // An array, whose elements are the messages, so that a message that is an array stays one.
        self.body.push(if self.units == 0 { b'[' } else { b',' });
        self.body.extend_from_slice(message.as_bytes());
        self.units += 1;
        self.bytes += message.len() as u64;
    }

    /// Adds the first bytes of another stream that have room. How many those are.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) -> usize {
        let added = bytes.len().min(BATCH_BYTES - self.body.len());
        self.body.extend_from_slice(&bytes[..added]);
        self.units += added as u64;
        self.bytes += added as u64;
        added
    }

    /// Whether a further byte has no room.
    pub(crate) fn is_full(&self) -> bool {
        self.body.len() >= BATCH_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.units == 0
    }

    /// The body of the append.
    pub(crate) fn body(&mut self) -> &[u8] {
        if self.json && self.body.last().is_some() && !self.is_complete() {
            self.body.push(b']');
        }
        &self.body
    }

    /// Whether the array has its end already. A batch takes nothing more then.
    fn is_complete(&self) -> bool {
        // One bracket at the beginning, and a comma before each further message.
        self.body.len() as u64 > self.bytes + self.units
    }

    /// Messages, or bytes.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Messages of a JSON stream; 1 for the bytes of another.
    pub(crate) fn records(&self) -> u64 {
        if self.json { self.units } else { 1 }
    }

    /// Bytes of data.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.body.clear();
        // One large message must not hold its memory for the rest of the import.
        self.body.shrink_to(BATCH_BYTES);
        (self.units, self.bytes) = (0, 0);
    }
}

/// The size of an append: large enough for the time of a sync not to count, and small beside the largest body that servers take.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_array() {
        let mut batch = AppendBatch::new(true);
        assert!(batch.is_empty());
        for message in ["1", "[2,3]", "\"]\""] {
            assert!(batch.has_room(message));
            batch.add_message(message);
        }
        assert_eq!(batch.body(), b"[1,[2,3],\"]\"]");
        // A body may be asked for again.
        assert_eq!(batch.body(), b"[1,[2,3],\"]\"]");
        assert_eq!((batch.units(), batch.records(), batch.bytes()), (3, 3, 9));
        batch.clear();
        batch.add_message("[]");
        assert_eq!(batch.body(), b"[[]]");
    }

    #[test]
    fn a_batch_is_bounded_but_for_a_message_alone() {
        let mut batch = AppendBatch::new(true);
        let large = format!("\"{}\"", "x".repeat(2 * BATCH_BYTES));
        assert!(batch.has_room(&large));
        batch.add_message(&large);
        assert!(!batch.has_room("1"));
        batch.clear();
        assert!(batch.body.capacity() <= BATCH_BYTES);

        let mut batch = AppendBatch::new(false);
        assert_eq!(batch.add_bytes(&vec![7; BATCH_BYTES - 1]), BATCH_BYTES - 1);
        assert!(!batch.is_full());
        assert_eq!(batch.add_bytes(b"abc"), 1);
        assert!(batch.is_full());
        assert_eq!(batch.body().len(), BATCH_BYTES);
        assert_eq!((batch.units(), batch.records()), (BATCH_BYTES as u64, 1));
    }
}
