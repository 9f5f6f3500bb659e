//! The chunked coding, decoded strictly.

/// Takes chunks apart.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// The beginning of a chunk.
    rest: Vec<u8>,
    /// The last chunk has come.
    pub(crate) ended: bool,
}

impl Chunks {
    /// Takes bytes in, and appends the content of complete chunks to `content`.
    pub(crate) fn take(&mut self, bytes: &[u8], content: &mut Vec<u8>) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.windows(2).position(|pair| pair == b"\r\n") {
            assert!(!self.ended, "bytes follow the last chunk");
            let size = std::str::from_utf8(&self.rest[..end]).expect("a chunk's size is text");
            let size = usize::from_str_radix(size, 16)
                .unwrap_or_else(|_| panic!("no chunk's size: {size:?}"));
            let start = end + 2;
            let Some(behind) = self.rest.get(start + size..start + size + 2) else {
                return;
            };
            assert_eq!(behind, b"\r\n", "behind a chunk");
            content.extend_from_slice(&self.rest[start..start + size]);
            self.ended = size == 0;
            self.rest.drain(..start + size + 2);
        }
    }

    /// What came of a chunk that was cut.
    pub(crate) fn cut(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.rest)
    }
}
