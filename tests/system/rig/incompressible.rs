//! Text that compresses badly, so that bytes are bytes.

/// Makes text that differs each time.
#[derive(Debug)]
pub(crate) struct Incompressible(u64);

impl Default for Incompressible {
    fn default() -> Self {
        Incompressible(1)
    }
}

impl Incompressible {
    /// Text of this many bytes, a multiple of 16.
    pub(crate) fn text(&mut self, bytes: usize) -> String {
        let mut word = || {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            format!("{:016x}", self.0 ^ self.0 >> 29)
        };
        (0..bytes / 16).map(|_| word()).collect()
    }
}
