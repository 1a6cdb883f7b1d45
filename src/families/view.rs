//! Where a part of a model lies in a checkpoint: the name of a tensor, and what of it.
//!
//! Most parts are a tensor of their own. Experts may be entries of a stack, gate and up may share
//! a tensor, as halves or every other row, and matrices may be stored transposed. A family says
//! which of these ([`super::Blueprint::views`]); `src/checkpoint` finds the bytes.

/// A part's place: which tensor, and what of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The tensor's name.
    pub name: String,
    /// Which entry of how many, along the tensor's first dimension.
    pub entry: Option<(usize, usize)>,
    /// What of the tensor, or of its entry.
    pub share: Share,
    /// The file has columns as rows.
    pub transposed: bool,
    /// The tensor has only the keys of each head, and these transposed.
    pub heads: Option<HeadsApart>,
}

/// Heads whose keys and values are in two tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadsApart {
    /// The tensor that has the values.
    pub values: String,
    /// How many heads.
    pub heads: usize,
    /// Rows of a head that are keys.
    pub key_rows: usize,
}

/// What of a tensor a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it.
    All,
    /// The first (0) or second (1) half of its rows.
    HalfOfRows(usize),
    /// Every other row, from row 0 or 1 on.
    EveryOtherRow(usize),
    /// Every other column, from column 0 or 1 on.
    EveryOtherColumn(usize),
}

impl View {
    /// A tensor of its own.
    pub fn whole(name: impl Into<String>) -> View {
        View { name: name.into(), entry: None, share: Share::All, transposed: false, heads: None }
    }

    /// An entry of a stack.
    pub fn entry(name: impl Into<String>, index: usize, count: usize) -> View {
        View { entry: Some((index, count)), ..View::whole(name) }
    }

    /// Only a share of it.
    pub fn share(self, share: Share) -> View {
        View { share, ..self }
    }

    /// Stored transposed.
    pub fn transposed(self) -> View {
        View { transposed: true, ..self }
    }

    /// Whether it is a tensor of its own, as it is.
    pub fn is_whole(&self) -> bool {
        self.entry.is_none() && self.share == Share::All && !self.transposed && self.heads.is_none()
    }

    /// The shape of the tensor that holds a part of this shape, without its dimension of entries:
    /// rows and columns as the file has them.
    pub fn holder([rows, cols]: [usize; 2], share: Share, transposed: bool) -> [usize; 2] {
        let [rows, cols] = match share {
            Share::All => [rows, cols],
            Share::HalfOfRows(_) | Share::EveryOtherRow(_) => [2 * rows, cols],
            Share::EveryOtherColumn(_) => [rows, 2 * cols],
        };
        if transposed { [cols, rows] } else { [rows, cols] }
    }
}
