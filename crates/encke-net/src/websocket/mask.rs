//! The masking of client frames (RFC 6455, section 5.3).

/// A masking key, and the position in it at which the next byte of the payload stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    /// The key, rotated so that its first byte belongs to the next byte of the payload.
    key: [u8; 4],
}

impl Mask {
    /// A key as it stands in the header, before the first byte of the payload.
    pub(crate) fn new(key: [u8; 4]) -> Self {
        Mask { key }
    }

    /// Unmasks the next part of the payload in place, and advances behind it. Masking is the same operation.
    ///
    /// The parts of a payload may have any lengths.
    pub(crate) fn apply(&mut self, part: &mut [u8]) {
        let [a, b, c, d] = self.key;
        let wide = [a, b, c, d, a, b, c, d];
        let wide_word = u64::from_ne_bytes(wide);
        let (words, rest) = part.as_chunks_mut::<8>();
        for word in words {
            *word = (u64::from_ne_bytes(*word) ^ wide_word).to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(wide) {
            *byte ^= key;
        }
        self.key.rotate_left(part.len() % 4);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_of_any_length_are_unmasked_as_byte_by_byte(
            payload in prop::collection::vec(any::<u8>(), 0..300),
            key in any::<[u8; 4]>(),
            cuts in prop::collection::vec(0..300_usize, 0..6),
            offset in 0..16_usize,
        ) {
            let naive: Vec<u8> = payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
            // The payload begins at any alignment.
            let mut room = vec![0; offset];
            room.extend_from_slice(&payload);
            let mut mask = Mask::new(key);
            let mut rest = &mut room[offset..];
            for cut in cuts {
                let cut = cut.min(rest.len());
                let (part, behind) = std::mem::take(&mut rest).split_at_mut(cut);
                mask.apply(part);
                rest = behind;
            }
            mask.apply(rest);
            prop_assert_eq!(&room[offset..], &naive[..]);
        }
    }
}
