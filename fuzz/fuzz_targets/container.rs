//! Fuzzes the telling of a container's formats: no panic, and what is told has the sizes given.
//!
//! Run with `bash tools/fuzz.sh 60 container`; an input is a shape, two sizes, a type of scales and a
//! stamp. Most inputs fit no format, so the sizes of one are tried as well.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream::checkpoint::colibri::{Sizes, resolve_format};
use millstream_kernels::{ScaleType, WeightFormat};

fn check(sizes: Sizes, stamp: Option<&str>) {
    let Ok(format) = resolve_format(sizes, stamp) else { return };
    assert_eq!(format.file_bytes(sizes.rows, sizes.cols) as u64, sizes.weight_bytes);
    let scales = format.file_scales(sizes.rows, sizes.cols) * sizes.scales.bytes();
    assert_eq!(scales as u64, sizes.scale_bytes);
    assert_eq!(format.scale_type(), Some(sizes.scales));
}

fuzz_target!(|input: (u32, u16, u64, u64, bool, u8, Option<String>)| {
    let (rows, cols, weight_bytes, scale_bytes, bytes, which, stamp) = input;
    let scales = if bytes { ScaleType::Ue8m0 } else { ScaleType::F32 };
    let (rows, cols) = (rows as usize, usize::from(cols));
    let sizes = Sizes { rows, cols, weight_bytes, scale_bytes, scales };
    check(sizes, stamp.as_deref());
    let format = WeightFormat::EACH[usize::from(which) % WeightFormat::EACH.len()];
    check(
        Sizes {
            weight_bytes: format.file_bytes(rows, cols) as u64,
            scale_bytes: (format.file_scales(rows, cols) * scales.bytes()) as u64,
            ..sizes
        },
        stamp.as_deref(),
    );
});
