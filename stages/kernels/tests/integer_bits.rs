//! Every integer body gives the bits of the scalar definition: matmuls of every integer format and
//! the rounding of activations.
//!
//! Bodies are those of the instruction sets and the spare ones (the 256-bit body with AVX-512's
//! encoding, AVX-512 with AVX2's dots). Tails of rows, columns and tokens are walked one by one;
//! weights and activations are ordinary, awkward (any scale bits, NaN, infinities, groups of zeros)
//! or at the ends of their ranges. NaN is compared as "is NaN".

use millstream_kernels::formats::scale::SCALE_TYPES;
use millstream_kernels::isa::ISAS;
use millstream_kernels::{
    ActivationLayout, FileLayout, FileMatrix, GgmlType, GroupSize, Isa, Kernels, Quantised,
    QuantisedRowMut, ScaleType, WeightFormat, Weights,
};

/// A small generator (SplitMix64), so that a failure repeats.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -4 .. 4.
    fn ordinary(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 21) as f32 - 4.0
    }

    /// Any bits one time in 40, one of the worst values as often, ordinary else: so that most
    /// groups stay finite.
    fn awkward(&mut self) -> f32 {
        const VALUES: [f32; 12] = [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE,
            -1e-45,
            1e-30,
            -0.0,
            9.9e-31,
            1e19,
            -127.5,
        ];
        match self.bits() % 40 {
            0 => f32::from_bits(self.bits() as u32),
            1 => VALUES[(self.bits() % VALUES.len() as u64) as usize],
            _ => self.ordinary(),
        }
    }
}

/// What weights and activations are made of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Ordinary,
    Awkward,
    /// All weight bytes the same, all activations at +127, -127 or each in turn.
    Ends(u8, [f32; 2]),
}

/// Activations of `tokens` rows; groups of zeros and of tiny values between others.
fn activations(kind: Kind, tokens: usize, cols: usize, random: &mut Random) -> Vec<f32> {
    let mut value = |i: usize| match kind {
        Kind::Ordinary => random.ordinary(),
        Kind::Awkward => match i % cols / 64 % 4 {
            1 => [0.0, -0.0][i % 2],
            2 => random.ordinary() * 1e-31,
            _ => random.awkward(),
        },
        Kind::Ends(_, pair) => pair[i % 2],
    };
    (0..tokens * cols).map(&mut value).collect()
}

fn scale_bytes(kind: Kind, scale: ScaleType, count: usize, random: &mut Random) -> Vec<u8> {
    let mut one = || -> Vec<u8> {
        let bits = random.bits();
        if kind == Kind::Awkward && bits.is_multiple_of(8) {
            return (bits >> 8).to_le_bytes()[..scale.bytes()].to_vec();
        }
        // Near one: exponents around the type's bias.
        match scale {
            ScaleType::F32 => (0x3c00_0000 | bits as u32 & 0x83ff_ffff).to_le_bytes().to_vec(),
            ScaleType::F16 => (0x2c00 | bits as u16 & 0x83ff).to_le_bytes().to_vec(),
            ScaleType::Bf16 => (0x3c00 | bits as u16 & 0x83ff).to_le_bytes().to_vec(),
            ScaleType::Ue8m0 => vec![120 + bits as u8 % 8],
        }
    };
    (0..count).flat_map(|_| one()).collect()
}

/// A matrix in the file layout.
struct Stored {
    format: WeightFormat,
    rows: usize,
    cols: usize,
    weights: Vec<u8>,
    scales: Vec<u8>,
}

impl Stored {
    fn new(
        format: WeightFormat,
        rows: usize,
        cols: usize,
        kind: Kind,
        random: &mut Random,
    ) -> Stored {
        let weight = |_| match kind {
            Kind::Ends(byte, _) => byte,
            Kind::Ordinary | Kind::Awkward => random.bits() as u8,
        };
        let mut weights: Vec<u8> = (0..format.file_bytes(rows, cols)).map(weight).collect();
        let scale = format.scale_type().expect("an integer format");
        if let (FileLayout::Ggml, Some(block)) = (format.file_layout(), GgmlType::of(format)) {
            for bytes in weights.chunks_exact_mut(block.block_bytes()) {
                for place in block.half_places() {
                    let half = scale_bytes(kind, scale, 1, random);
                    bytes[*place..place + 2].copy_from_slice(&half);
                }
            }
        }
        let scales = scale_bytes(kind, scale, format.file_scales(rows, cols), random);
        Stored { format, rows, cols, weights, scales }
    }

    /// The first rows in the compute layout, in words that are aligned as arenas are.
    fn lay_out(&self, rows: usize) -> Vec<u128> {
        let bytes = self.format.matrix_bytes(rows, self.cols);
        let mut words = vec![0u128; bytes.div_ceil(16)];
        let Stored { format, cols, ref weights, ref scales, .. } = *self;
        let file = FileMatrix {
            format,
            layout: format.file_layout(),
            rows: self.rows,
            cols,
            weights,
            scales,
        };
        file.lay_out(0..rows, 0..cols, &mut bytemuck::cast_slice_mut(&mut words)[..bytes]);
        words
    }
}

fn weights(format: WeightFormat, rows: usize, cols: usize, words: &[u128]) -> Weights<'_> {
    Weights::new(
        format,
        rows,
        cols,
        &bytemuck::cast_slice(words)[..format.matrix_bytes(rows, cols)],
    )
}

/// Quantised rows and where they lie.
struct Rows {
    layout: ActivationLayout,
    codes: Vec<i8>,
    scales: Vec<f32>,
    sums: Vec<i32>,
}

impl Rows {
    fn new(kernels: Kernels, layout: ActivationLayout, x: &[f32]) -> Rows {
        let tokens = x.len().checked_div(layout.cols).unwrap_or(1);
        let (codes, units) = (layout.codes(), layout.units());
        let mut rows = Rows {
            layout,
            codes: vec![99; tokens * codes],
            scales: vec![99.0; tokens * units],
            sums: vec![99; tokens * units],
        };
        for t in 0..tokens {
            let out = QuantisedRowMut {
                codes: &mut rows.codes[t * codes..][..codes],
                scales: &mut rows.scales[t * units..][..units],
                sums: &mut rows.sums[t * units..][..units],
            };
            kernels.quantise(&layout, &x[t * layout.cols..][..layout.cols], out);
        }
        rows
    }

    fn matmul(&self, kernels: Kernels, w: Weights, chosen: &[u32]) -> Vec<f32> {
        let Rows { layout, ref codes, ref scales, ref sums } = *self;
        let x = Quantised { layout, codes, scales, sums, rows: chosen };
        let mut out = vec![7.0; chosen.len() * w.rows()];
        kernels.matmul_quantised(w, x, &mut out);
        out
    }
}

fn scalar() -> Kernels {
    Kernels::new(Isa::Scalar).expect("scalar runs everywhere")
}

/// The vector bodies of this machine; names the sets that can't be compared here.
fn bodies() -> Vec<(String, Kernels)> {
    use std::io::Write;
    for isa in ISAS.iter().filter(|isa| !isa.is_available()) {
        writeln!(std::io::stderr(), "NOT COMPARED: this machine has no {isa}")
            .expect("stderr is open");
    }
    let sets = ISAS.iter().filter(|isa| **isa != Isa::Scalar);
    let mut bodies: Vec<(String, Kernels)> =
        sets.filter_map(|isa| Some((isa.to_string(), Kernels::new(*isa)?))).collect();
    bodies.extend(Kernels::spare_bodies().into_iter().map(|(name, body)| (name.to_owned(), body)));
    bodies
}

/// Every integer format with every type of scale.
fn formats() -> Vec<WeightFormat> {
    let blocks = |format: &WeightFormat| format.file_layout() == FileLayout::Ggml;
    let mut formats: Vec<WeightFormat> = WeightFormat::EACH.into_iter().filter(blocks).collect();
    formats.push(WeightFormat::Mxfp4);
    for scale in SCALE_TYPES {
        formats.extend([
            WeightFormat::Int8Group32(scale),
            WeightFormat::Int8Row(scale),
            WeightFormat::Int4Row(scale),
            WeightFormat::Int2Row(scale),
            WeightFormat::Int3Group64(scale),
        ]);
        for columns in [32, 48, 64, 80, 96, 128, 240, 256] {
            let group = GroupSize::new(columns).expect("a multiple of 16");
            formats.push(WeightFormat::Int4Group(group, scale));
        }
    }
    formats
}

fn canonical(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
}

#[track_caller]
fn assert_same(got: &[f32], want: impl ExactSizeIterator<Item = f32>, what: impl Fn() -> String) {
    assert_eq!(got.len(), want.len(), "{}", what());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = canonical(*got) == canonical(want);
        assert!(same, "{}, element {i}: {got:e} not {want:e}", what());
    }
}

/// One matrix and its activations, multiplied once by the definition: bodies are compared with
/// parts of that, since an output doesn't depend on what is computed beside it.
struct Case {
    stored: Stored,
    rows: Rows,
    tokens: usize,
    want: Vec<f32>,
    kind: Kind,
}

impl Case {
    fn new(format: WeightFormat, rows: usize, cols: usize, tokens: usize, kind: Kind) -> Case {
        let mut random = Random((rows * 1_000_003 + cols * 1009 + tokens) as u64);
        let stored = Stored::new(format, rows, cols, kind, &mut random);
        let layout = ActivationLayout::of(format, cols).expect("an integer format");
        let x = activations(kind, tokens, cols, &mut random);
        let quantised = Rows::new(scalar(), layout, &x);
        let chosen: Vec<u32> = (0..tokens as u32).collect();
        let words = stored.lay_out(rows);
        let want = quantised.matmul(scalar(), weights(format, rows, cols, &words), &chosen);
        Case { stored, rows: quantised, tokens, want, kind }
    }

    /// Compares every body on the first `rows` rows and on `tokens` tokens from `first` on,
    /// backwards.
    fn compare(&self, bodies: &[(String, Kernels)], rows: usize, first: usize, tokens: usize) {
        let Stored { format, rows: all, cols, .. } = self.stored;
        let words = self.stored.lay_out(rows);
        let chosen: Vec<u32> =
            (0..tokens).map(|t| ((first + tokens - t) % self.tokens) as u32).collect();
        for (name, body) in bodies {
            let got = self.rows.matmul(*body, weights(format, rows, cols, &words), &chosen);
            for (got, token) in got.chunks_exact(rows).zip(&chosen) {
                let want = self.want[*token as usize * all..][..rows].iter().copied();
                assert_same(got, want, || {
                    let kind = self.kind;
                    format!(
                        "{format} on {name}, {rows} rows, {cols} cols, token {token} of {tokens}, {kind:?}"
                    )
                });
            }
        }
    }
}

#[test]
fn every_tail_of_columns() {
    let bodies = bodies();
    for format in formats() {
        for cols in 1..=130 {
            let kind = if cols % 3 == 0 { Kind::Awkward } else { Kind::Ordinary };
            let case = Case::new(format, 18, cols, 3, kind);
            // With one token and with several: their tails are one code but other registers.
            case.compare(&bodies, 18, 0, 1);
            case.compare(&bodies, 1 + cols % 18, cols, 2 + cols % 8);
        }
    }
}

#[test]
fn every_tail_of_rows_and_every_number_of_tokens() {
    let bodies = bodies();
    for format in formats() {
        for (cols, kind) in [(72, Kind::Ordinary), (200, Kind::Awkward)] {
            let case = Case::new(format, 40, cols, 17, kind);
            for rows in 1..=40 {
                case.compare(&bodies, rows, rows, 1 + rows % 9);
            }
            for tokens in (1..=9).chain([17]) {
                case.compare(&bodies, 33, 0, tokens);
            }
        }
    }
}

#[test]
fn long_rows() {
    let bodies = bodies();
    for format in formats() {
        for (cols, kind) in [(4096, Kind::Ordinary), (4104, Kind::Awkward), (4136, Kind::Ordinary)]
        {
            let case = Case::new(format, 17, cols, 2, kind);
            case.compare(&bodies, 17, 0, 1);
            case.compare(&bodies, 17, 1, 2);
            case.compare(&bodies, 17, 0, 13);
        }
    }
}

/// More rows than all tokens pass over at once, so that blocks are fetched in several groups.
#[test]
fn more_rows_than_a_cache_holds() {
    let bodies = bodies();
    for format in WeightFormat::EACH.into_iter().filter(|f| ActivationLayout::of(*f, 1).is_some()) {
        let case = Case::new(format, 1100, 512, 2, Kind::Ordinary);
        case.compare(&bodies, 1100, 0, 11);
    }
}

#[test]
fn the_ends_of_the_ranges_don_t_saturate() {
    let bodies = bodies();
    for format in formats() {
        // Every code at the least, the greatest and the worst magnitude of each format.
        for byte in [0x00, 0xff, 0x80, 0x7f, 0x77, 0x88] {
            for pair in [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]] {
                let case = Case::new(format, 16, 320, 1, Kind::Ends(byte, pair));
                assert!(case.rows.codes.iter().any(|code| code.abs() == 127));
                case.compare(&bodies, 16, 0, 1);
                case.compare(&bodies, 16, 0, 8);
            }
        }
    }
}

#[test]
fn nothing_gives_nothing_and_no_columns_give_zero() {
    for (name, body) in bodies().into_iter().chain([("scalar".to_owned(), scalar())]) {
        for format in formats() {
            let case = Case::new(format, 20, 40, 2, Kind::Ordinary);
            let words = case.stored.lay_out(20);
            assert!(case.rows.matmul(body, weights(format, 20, 40, &words), &[]).is_empty());
            assert!(case.rows.matmul(body, weights(format, 0, 40, &[]), &[0, 1]).is_empty());
            let none = Rows::new(body, ActivationLayout::of(format, 0).expect("integers"), &[]);
            let words = vec![0; format.matrix_bytes(20, 0).div_ceil(16)];
            let got = none.matmul(body, weights(format, 20, 0, &words), &[0, 0]);
            assert_same(&got, [0.0; 40].into_iter(), || format!("{format} on {name}"));
        }
    }
}

/// The rule gives what decoded weights and decoded activations give, but for rounding of the sums.
#[test]
fn the_rule_is_the_product_of_weights_and_activations() {
    for format in formats() {
        let case = Case::new(format, 20, 300, 2, Kind::Ordinary);
        let words = case.stored.lay_out(20);
        let w = weights(format, 20, 300, &words);
        let Rows { layout, ref codes, ref scales, .. } = case.rows;
        for token in 0..2 {
            let x = |c: usize| {
                let code = codes[token * layout.codes() + layout.order.place(c)];
                f64::from(code) * f64::from(scales[token * layout.units() + c / layout.unit])
            };
            for row in 0..20 {
                let products = (0..300).map(|c| f64::from(w.weight(row, c)) * x(c));
                let (mut sum, mut size) = (0.0, 0.0);
                products.for_each(|p| (sum, size) = (sum + p, size + p.abs()));
                let got = f64::from(case.want[token * 20 + row]);
                assert!((got - sum).abs() <= 1e-5 * size, "{format}, row {row}: {got} not {sum}");
            }
        }
    }
}

/// The layouts that formats ask for, each once.
fn layouts(cols: usize) -> Vec<ActivationLayout> {
    let mut layouts: Vec<ActivationLayout> = vec![];
    for layout in formats().into_iter().filter_map(|format| ActivationLayout::of(format, cols)) {
        if !layouts.contains(&layout) {
            layouts.push(layout);
        }
    }
    layouts
}

#[test]
fn rounding_of_activations() {
    let bodies = bodies();
    let (mut zero, mut nan, mut full) = (false, false, false);
    for cols in (0..=300).chain([2048, 4096, 4104, 6143, 6144]) {
        for layout in layouts(cols) {
            for kind in [Kind::Ordinary, Kind::Awkward, Kind::Ends(0, [1.0, -1.0])] {
                let x = activations(kind, 1, cols, &mut Random(cols as u64));
                let want = Rows::new(scalar(), layout, &x);
                zero |= want.scales.contains(&0.0);
                nan |= want.scales.iter().any(|scale| scale.is_nan());
                full |= want.codes.contains(&-127);
                for (name, body) in &bodies {
                    let got = Rows::new(*body, layout, &x);
                    let what = || format!("{layout:?} on {name}, {kind:?}");
                    assert_eq!(got.codes, want.codes, "{}", what());
                    assert_eq!(got.sums, want.sums, "{}", what());
                    assert_same(&got.scales, want.scales.iter().copied(), what);
                }
            }
        }
    }
    assert!(zero && nan && full, "the activations reach every case");
}

/// Halves between two codes go to the even one, whatever came before.
#[test]
fn halves_round_to_even() {
    for (name, body) in bodies().into_iter().chain([("scalar".to_owned(), scalar())]) {
        let layout =
            layouts(64).into_iter().find(|layout| layout.group == 64).expect("one of them");
        // The largest is 127, so that a value is its own code before rounding.
        let mut x: Vec<f32> = (0..64).map(|i| i as f32 - 31.5).collect();
        x[63] = 127.0;
        let got = Rows::new(body, layout, &x);
        for (column, x) in x.iter().enumerate() {
            let code = got.codes[layout.order.place(column)];
            assert_eq!(f32::from(code), x.round_ties_even(), "{x} on {name}");
            assert!(x.fract() == 0.0 || code % 2 == 0, "{x} on {name}");
        }
    }
}
