//! Weight formats and their arithmetic.
