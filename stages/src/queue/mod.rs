//! Lock-free queues.
