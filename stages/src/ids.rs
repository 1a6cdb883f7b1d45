//! Typed ids and the generation tag.
//!
//! Every index that crosses a stage border has a type of its own, so that a layer can't be passed
//! where an expert is meant. A [`Tag`] pairs a place (ring cell, wave, slot) with the count of
//! lives that place has had. Owned by nobody: plain values.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $noun:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into a table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($noun, " {}"), self.0)
            }
        }
    };
}

id!(
    /// A decoder layer, counted from 0.
    LayerId, "layer"
);
id!(
    /// A routed expert of a layer, counted from 0.
    ExpertId, "expert"
);
id!(
    /// A seat: a thread that hosts actors.
    SeatId, "seat"
);
id!(
    /// A sequence that the engine has admitted: an index into its tables, recycled.
    SequenceId, "sequence"
);
id!(
    /// A file of the model, an index into the checkpoint's list.
    FileId, "file"
);

/// A place and the count of lives it has had; compared for equality only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tag {
    /// Which place.
    pub index: u32,
    /// Which life of it.
    pub generation: u32,
}

impl Tag {
    /// The tag in one word: generation in the high half.
    pub fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`Tag::pack`].
    pub fn unpack(word: u64) -> Tag {
        Tag { index: word as u32, generation: (word >> 32) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_survives_packing() {
        let tag = Tag { index: 7, generation: u32::MAX };
        assert_eq!(Tag::unpack(tag.pack()), tag);
        assert_ne!(Tag { index: 7, generation: 0 }, tag);
    }
}
