//! Figures of several runs in one: means, medians, and a hash of what was answered.

use crate::checkpoint::pack::checksum::checksum;
use crate::engine::Answer;

/// The middle one; the upper of two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Mean and standard deviation (of a sample: divided by n - 1) of some values; 0 where there are none.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0)).sqrt())
}

/// A hash of what the model chose at every position of some answers, also where other ids were fed:
/// equal where the same model was fed the same.
pub fn token_hash(answers: &[Answer]) -> String {
    let ids = answers.iter().flat_map(|answer| &answer.chosen_ids);
    let bytes: Vec<u8> = ids.flat_map(|id| id.to_le_bytes()).collect();
    format!("{:016x}", checksum(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_some_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![]), 0.0);
    }

    #[test]
    fn deviation_is_that_of_a_sample() {
        let (mean, deviation) = mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(mean, 5.0);
        assert!((deviation - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
    }
}
