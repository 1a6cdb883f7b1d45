//! What int8 activations cost: in every format that experts can be rounded to, the held-out loss of
//! the small model against the f32 run over the same, dequantised weights.

use crate::heldout::{dequantised, loss};
use crate::rounded::RoundedExperts;
use crate::support::heldout_ids;
use millstream::engine::Model;
use millstream_kernels::WeightFormat;
use std::path::Path;
use std::sync::Arc;

/// How far apart the losses may be, in nats.
const APART_MAX: f64 = 0.005;
/// Tokens of a window.
const WINDOW: usize = 512;

fn model(format: WeightFormat) -> Model {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/nano-glm-dsa");
    let model = Model::open(&directory).expect("the small model opens");
    Model { source: Arc::new(RoundedExperts(model.source, format)), ..model }
}

#[test]
fn int8_activations_cost_next_to_nothing_in_every_format() {
    let ids = heldout_ids();
    let formats = ["int8-row", "int4-row", "int4-g32", "int4-g64", "int3-g64", "int2-row", "mxfp4"];
    let mut apart_max = 0f64;
    for name in formats {
        let format: WeightFormat = name.parse().expect("a format");
        let as_it_is = loss(model(format), &ids, WINDOW);
        let exact = loss(dequantised(model(format)), &ids, WINDOW);
        println!("{name:9} {as_it_is:.4} nats, f32 over its own weights {exact:.4}");
        assert!(as_it_is.is_finite() && exact.is_finite(), "{name}");
        apart_max = apart_max.max((as_it_is - exact).abs());
    }
    assert!(apart_max < APART_MAX, "{apart_max} apart");
}
