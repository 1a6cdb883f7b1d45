//! One name for the atomics of the slot state: the standard library's, or loom's under
//! `cfg(loom)`, so that the model checker explores the very code that ships.
//!
//! Only [`super::slot`] uses it.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU64, Ordering};
