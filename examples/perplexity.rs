//! The loss of a model on held-out text: `cargo run --release --example perplexity -- MODEL IDS.json`.
//!
//! Prints the mean negative log-likelihood per token in nats and the perplexity, for the model as
//! it is and for the f32 run over its dequantised weights: the difference is what int8 activations
//! cost. IDS.json is `{"tokens": [..]}`.

#[path = "../tests/whole/heldout.rs"]
mod heldout;

use millstream::engine::Model;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(directory), Some(ids)) = (arguments.next(), arguments.next()) else {
        return Err("usage: perplexity MODEL IDS.json".into());
    };
    let ids: serde_json::Value = serde_json::from_slice(&std::fs::read(ids)?)?;
    let tokens = ids["tokens"].as_array().ok_or("no list of tokens")?;
    let tokens: Vec<u32> = tokens.iter().filter_map(|id| Some(id.as_u64()? as u32)).collect();
    let directory = std::path::Path::new(&directory);
    let window = 512;
    let as_it_is = heldout::loss(Model::open(directory)?, &tokens, window);
    let exact = heldout::loss(heldout::dequantised(Model::open(directory)?), &tokens, window);
    println!("{} tokens in windows of {window}", tokens.len());
    println!("as it is          {as_it_is:.4} nats, perplexity {:.3}", libm::exp(as_it_is));
    println!("f32 over its own  {exact:.4} nats, perplexity {:.3}", libm::exp(exact));
    println!("int8 activations  {:+.4} nats", as_it_is - exact);
    Ok(())
}
