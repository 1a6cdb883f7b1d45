//! The kernel's calls for NUMA memory: where pages shall come from, and where they are.
//!
//! Called by `bind.rs` (policies of a range, before anything touches it) and `pages.rs` (a question
//! that changes nothing). No crate wraps them; they are few, so they are called as they are.
#![allow(unsafe_code)]

use crate::cpuset::NodeId;
use std::io;

/// Where the pages of a range shall come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    /// An `MPOL_` number.
    pub(super) mode: libc::c_int,
    /// Ascending; never empty.
    pub(super) nodes: Vec<NodeId>,
}

/// MPOL_WEIGHTED_INTERLEAVE, since Linux 6.9.
pub(super) const MPOL_WEIGHTED_INTERLEAVE: libc::c_int = 6;

/// mbind(2) on whole pages of our memory: pages that are touched from now on come from where
/// `target` says; pages that are there stay.
pub(super) fn bind_pages(address: usize, bytes: usize, target: &Target) -> io::Result<()> {
    const WORD_BITS: usize = libc::c_ulong::BITS as usize;
    let highest = target.nodes.last().expect("a target has a node").index();
    let mut mask = vec![0 as libc::c_ulong; highest / WORD_BITS + 1];
    for node in &target.nodes {
        mask[node.index() / WORD_BITS] |= 1 << (node.index() % WORD_BITS);
    }
    // The kernel reads one bit less than `maxnode` says.
    let bits = mask.len() * WORD_BITS + 1;
    // SAFETY:
    // - mbind changes where pages of the range come from, never their contents.
    // - the range is whole pages of live memory of ours: callers take it from a `Mapping` or from
    //   inside a slice. Where it isn't mapped the kernel refuses and changes nothing that is used.
    // - `mask` holds `bits - 1` bits and outlives the call, which only reads it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            address as *mut libc::c_void,
            bytes,
            libc::c_long::from(target.mode),
            mask.as_ptr(),
            bits,
            0usize,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// madvise(2) with MADV_DONTNEED on whole pages of private memory: they are zero from then on, and come
/// anew, from where the policy says, when they are touched.
pub(super) fn drop_pages(memory: &mut [u8]) -> io::Result<()> {
    // SAFETY:
    // - the range is ours alone as long as the call takes: `memory` is an exclusive borrow.
    // - its bytes are valid whatever they are afterwards (zero, as it is private and anonymous).
    let result =
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_DONTNEED) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// get_mempolicy(2): the thread's own policy, an `MPOL_` number; `None` where the kernel doesn't say.
pub(super) fn thread_policy() -> Option<libc::c_int> {
    let mut mode: libc::c_int = libc::MPOL_DEFAULT;
    // SAFETY:
    // - without an address and a mask the call writes the mode and nothing else.
    // - `mode` is an int of ours that outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            std::ptr::null_mut::<libc::c_ulong>(),
            0usize,
            std::ptr::null_mut::<libc::c_void>(),
            0usize,
        )
    };
    (result == 0).then_some(mode)
}

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageState {
    /// On a node.
    On(NodeId),
    /// Nothing was touched there yet.
    Absent,
    /// The kernel doesn't say.
    Unknown,
}

/// move_pages(2) as a question: where the pages at these addresses are. Touches and moves nothing.
pub(super) fn nodes_of_pages(addresses: &[usize]) -> io::Result<Vec<PageState>> {
    let mut states: Vec<libc::c_int> = vec![-libc::ENOENT; addresses.len()];
    // SAFETY:
    // - without a list of nodes the call moves nothing; it reads `addresses.len()` addresses, which
    //   are only looked up, never followed, and writes as many states.
    // - both lists have that length and outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0 as libc::c_long,
            addresses.len(),
            addresses.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            states.as_mut_ptr(),
            0 as libc::c_long,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let state = |state: libc::c_int| match u32::try_from(state) {
        Ok(node) => PageState::On(NodeId(node)),
        Err(_) if state == -libc::ENOENT => PageState::Absent,
        Err(_) => PageState::Unknown,
    };
    Ok(states.into_iter().map(state).collect())
}
