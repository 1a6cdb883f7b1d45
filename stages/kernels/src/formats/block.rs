//! The compute layout of integer codes: blocks of 16 rows, lines of 64 bytes.
//!
//! ```text
//! block      | scales: group 0 of rows 0..16, group 1 of rows 0..16, ..  | lines                  |
//!            | filled up with zeros to a multiple of 64 bytes            |                        |
//! line       | row 0: 4 bytes | row 1: 4 bytes | ..  | row 15: 4 bytes |
//! ```
//!
//! So a 512-bit register holds four bytes of each of 16 rows, and a dword lane is a row. The four
//! bytes of a row and line hold 4 columns (int8), 8 (nibbles) or 16 (two bits): byte j of the dword
//! gives, bits from low to high, one column to each of 1, 2 or 4 *quads*. A quad is four columns
//! of a row, one per byte: what one integer dot instruction takes. Which columns make a quad is the
//! format's [`Order`]; activations are stored in the same order. The dwords are those of the file
//! layout (int3's high plane aside), so that laying out is a transposition of dwords.
//!
//! Rows are filled up to 16 and columns to a whole step with codes that mean zero; scales of rows
//! that aren't there are zero bytes.

/// Rows of a block.
pub const BLOCK_ROWS: usize = 16;

/// Bytes of a line: a cache line.
pub const LINE_BYTES: usize = 64;

/// Which columns a quad holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// Quad q, byte j: column 4q + j.
    Plain,
    /// Quad 2c + h, byte j: column 8c + 2j + h.
    Pairs,
    /// Quad 4m + k, byte j: column 16m + 4j + k.
    Fours,
}

/// Every order.
pub const ORDERS: [Order; 3] = [Order::Plain, Order::Pairs, Order::Fours];

impl Order {
    /// The column that byte `byte` (0 to 3) of quad `quad` holds.
    pub const fn column(self, quad: usize, byte: usize) -> usize {
        match self {
            Order::Plain => 4 * quad + byte,
            Order::Pairs => quad / 2 * 8 + 2 * byte + quad % 2,
            Order::Fours => quad / 4 * 16 + 4 * byte + quad % 4,
        }
    }

    /// The place, counted in bytes over quads, of a column: the inverse of [`Order::column`].
    pub const fn place(self, column: usize) -> usize {
        match self {
            Order::Plain => column,
            Order::Pairs => column / 8 * 8 + column % 2 * 4 + column % 8 / 2,
            Order::Fours => column / 16 * 16 + column % 4 * 4 + column % 16 / 4,
        }
    }
}

/// The codes of an integer format within blocks. A code is unsigned; its value is
/// [`BlockCode::value`].
pub trait BlockCode {
    /// Columns of a step: the shortest run of whole lines.
    const STEP_COLUMNS: usize;
    /// Lines of a step.
    const STEP_LINES: usize;
    /// Which columns a quad holds.
    const ORDER: Order;
    /// The code that means zero.
    const ZERO_CODE: u8;
    /// What the unsigned bytes that kernels multiply exceed the values by.
    const OFFSET: i32;
    /// The factor from values to weights, beside the scale (1/2 for codes that count halves).
    const FACTOR: f32;

    /// The code of a row (0 to 15) and column (of the step) in a step's lines.
    fn get(step: &[u8], row: usize, column: usize) -> u8;
    /// Writes a code; its bits in `step` must be zero.
    fn put(step: &mut [u8], row: usize, column: usize, code: u8);
    /// The integer that a code stands for.
    fn value(code: u8) -> i32;
    /// A row's dwords of whole steps, line after line, from its codes, one a byte.
    fn pack(codes: &[u8], dwords: &mut [u8]);
}

/// Codes that lie row by row in a file, their scales apart.
pub trait FileCode: BlockCode {
    /// The code of a column in a row of the file layout.
    fn file_get(row: &[u8], column: usize) -> u8;
    /// Writes a code into a row of the file layout; its bits must be zero.
    fn file_put(row: &mut [u8], column: usize, code: u8);
    /// The code of an integer; the inverse of [`BlockCode::value`] where there is one.
    fn code(value: i32) -> u8;
}

/// Bytes of a block's lines.
pub const fn code_bytes<C: BlockCode>(cols: usize) -> usize {
    cols.div_ceil(C::STEP_COLUMNS) * C::STEP_LINES * LINE_BYTES
}

/// Where in a line (counted in bytes) a row's dword begins.
pub const fn dword(row: usize) -> usize {
    4 * row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::codes::for_codes;
    use crate::formats::iq4_nl::Iq4;
    use crate::formats::mxfp4::E2m1;
    use crate::formats::{
        FORMATS, WeightFormat, int2_row::Int2, int3_group::Int3, int4_group::Int4, int8_row::Int8,
    };

    #[test]
    fn orders_and_their_inverses_agree() {
        for order in ORDERS {
            for place in 0..256 {
                assert_eq!(order.place(order.column(place / 4, place % 4)), place, "{order:?}");
            }
        }
    }

    /// Different codes beside each other, as many as `bits` allow.
    fn code(bits: u32, row: usize, column: usize) -> u8 {
        (row * 7 + column * 5 + column / 16) as u8 & ((1u16 << bits) - 1) as u8
    }

    /// Codes of every row come back from their step, and packing gives the same bytes.
    fn codes_return<C: BlockCode>(bits: u32) {
        let mut step = vec![0; C::STEP_LINES * LINE_BYTES];
        for row in 0..BLOCK_ROWS {
            for column in 0..C::STEP_COLUMNS {
                C::put(&mut step, row, column, code(bits, row, column));
            }
        }
        for row in 0..BLOCK_ROWS {
            let codes: Vec<u8> = (0..C::STEP_COLUMNS).map(|c| code(bits, row, c)).collect();
            let got: Vec<u8> = (0..C::STEP_COLUMNS).map(|c| C::get(&step, row, c)).collect();
            assert_eq!(got, codes, "row {row}");
            let mut packed = vec![0; 4 * C::STEP_LINES];
            C::pack(&codes, &mut packed);
            let lines = step.chunks(LINE_BYTES).map(|line| &line[dword(row)..dword(row) + 4]);
            assert_eq!(packed, lines.flatten().copied().collect::<Vec<u8>>(), "row {row}");
        }
        for code in 0..1u16 << bits {
            let unsigned = C::value(code as u8) + C::OFFSET;
            assert!((0..256).contains(&unsigned), "kernels multiply unsigned bytes");
        }
    }

    #[test]
    fn every_code_returns_from_its_block() {
        assert_eq!(FORMATS.len(), WeightFormat::EACH.len());
        for format in WeightFormat::EACH {
            if let Some(kind) = format.codes() {
                for_codes!(kind, C => codes_return::<C>(format.info().file_bits as u32));
            }
        }
    }

    #[test]
    fn padding_means_zero_where_a_code_does() {
        for format in WeightFormat::EACH {
            if let Some(kind) = format.codes() {
                let zero = for_codes!(kind, C => C::value(C::ZERO_CODE));
                let least = if kind == crate::formats::codes::CodeKind::Iq4 { 1 } else { 0 };
                assert_eq!(zero, least, "{format}");
            }
        }
        assert!((0..16).all(|code| Iq4::value(code) != 0));
    }

    fn codes_return_from_file<C: FileCode>(bits: u32) {
        let mut file = [0; 64];
        for column in 0..64 {
            C::file_put(&mut file, column, code(bits, 0, column));
        }
        for column in 0..64 {
            assert_eq!(C::file_get(&file, column), code(bits, 0, column), "column {column}");
        }
    }

    #[test]
    fn every_code_returns_from_its_file() {
        codes_return_from_file::<Int8>(8);
        codes_return_from_file::<Int4>(4);
        codes_return_from_file::<Int2>(2);
        codes_return_from_file::<Int3>(3);
        codes_return_from_file::<E2m1>(4);
    }
}
