//! Walks the table.
