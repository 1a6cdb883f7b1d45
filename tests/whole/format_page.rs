//! docs/format.md tells the truth: its offsets are those of the pack inside the binary.

use millstream::checkpoint::pack::{PackChecks, PackFiles};
use millstream_stages::ids::LayerId;
use millstream_stages::load::EXPERT_MATRICES;
use std::path::Path;

#[test]
fn the_page_of_the_format_has_the_right_offsets() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/format.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa");
    let pack = PackFiles::open(&directory, PackChecks::default()).expect("it opens");
    let mut rows = 0;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let &[_, file, name, offset, bytes, ..] = cells.as_slice() else { continue };
        let Some(layout) = pack.layouts().find(|layout| layout.name == file) else { continue };
        let found = match layout.tensors.iter().find(|tensor| tensor.name == name) {
            Some(tensor) => (tensor.offset, tensor.bytes),
            None => {
                assert_eq!(name, "millstream.checksums");
                (layout.checksums_offset, 8 * layout.checksums as u64)
            }
        };
        assert_eq!((offset, bytes), (&*found.0.to_string(), &*found.1.to_string()), "{line}");
        rows += 1;
    }
    assert!(rows >= 12, "{rows} rows of the table were checked");
    // The drawing of an expert.
    let shape = pack.expert_shape(LayerId(1));
    let starts: Vec<usize> = (0..shape.slices)
        .flat_map(|s| {
            EXPERT_MATRICES.map(|m| 8192 + s * shape.slice_bytes() + shape.range(m).start)
        })
        .chain([8192 + shape.expert_bytes(), 8192 + 28672])
        .collect();
    let drawing = page.lines().find(|line| line.starts_with("offset ")).expect("the drawing");
    let drawn: Vec<usize> =
        drawing.split_whitespace().skip(1).map(|n| n.parse().expect("an offset")).collect();
    assert_eq!(drawn, starts);
}
