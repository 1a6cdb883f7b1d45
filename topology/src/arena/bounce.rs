//! A buffer that a drive can write to directly: whole huge pages, present from the start.
//!
//! Owned by whoever reads files whose bytes don't lie as they are used: the drive fills the buffer,
//! the reader deals what it wants out of it. Reads into 4 KiB pages run at half the speed of reads
//! into huge ones, so the buffer is aligned to 2 MiB and asks for them.
#![allow(unsafe_code)]

use super::ArenaError;
use super::calls::{Target, bind_pages};
use super::layout::Span;
use super::mapping::Mapping;
use crate::cpuset::NodeId;

/// Anonymous memory of its own, zero at first.
#[derive(Debug)]
pub struct Bounce {
    mapping: Mapping,
    bytes: usize,
}

impl Bounce {
    /// Maps at least `bytes` bytes and makes them present.
    ///
    /// # Errors
    /// When the kernel gives no mapping.
    pub fn new(bytes: usize) -> Result<Bounce, ArenaError> {
        Bounce::near(bytes, None)
    }

    /// [`Bounce::new`], on a node where that is permitted: that of the drive that writes into it.
    ///
    /// # Errors
    /// When the kernel gives no mapping.
    pub fn near(bytes: usize, node: Option<NodeId>) -> Result<Bounce, ArenaError> {
        let mapping = Mapping::new(bytes)?;
        if let Some(node) = node {
            let (address, whole) = mapping.whole();
            let target = Target { mode: libc::MPOL_PREFERRED, nodes: vec![node] };
            // A wish: where it is refused the buffer is as good, only further away.
            let _ = bind_pages(address, whole, &target);
        }
        mapping.ask_huge_pages();
        // Kernels before 5.14 can't; pages then come on first touch.
        let _ = mapping.populate(Span { offset: 0, bytes });
        Ok(Bounce { mapping, bytes })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no room.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let span = Span { offset: 0, bytes: self.bytes };
        let pointer = self.mapping.pointer(span);
        // SAFETY:
        // - the span lies in the mapping (`pointer` asserts), which `self` keeps mapped.
        // - the mapping has one owner, and writes through it need `&mut self`.
        unsafe { std::slice::from_raw_parts(pointer, span.bytes) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let span = Span { offset: 0, bytes: self.bytes };
        let pointer = self.mapping.pointer(span);
        // SAFETY:
        // - the span lies in the mapping (`pointer` asserts), which `self` keeps mapped.
        // - the mapping has one owner, and `&mut self` makes this the only slice of it.
        unsafe { std::slice::from_raw_parts_mut(pointer, span.bytes) }
    }

    /// The address of the first byte, for a kernel that writes while nobody holds a slice. It stays
    /// the same however the value is moved.
    pub fn pointer_mut(&mut self) -> *mut u8 {
        self.mapping.pointer(Span { offset: 0, bytes: self.bytes })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_aligned_and_kept_when_moved() {
        // A node that isn't there is a wish that isn't granted.
        drop(Bounce::near(5, Some(NodeId(900))).expect("mapped"));
        let mut bounce = Bounce::near((3 << 20) + 5, Some(NodeId(0))).expect("mapped");
        assert_eq!((bounce.len(), bounce.is_empty()), ((3 << 20) + 5, false));
        assert!(bounce.bytes().iter().all(|&byte| byte == 0));
        assert_eq!(bounce.pointer_mut().addr() % (2 << 20), 0);
        bounce.bytes_mut().fill(7);
        let before = bounce.pointer_mut().addr();
        let mut moved = Box::new(bounce);
        assert_eq!(moved.pointer_mut().addr(), before);
        assert!(moved.bytes().iter().all(|&byte| byte == 7));
    }
}
