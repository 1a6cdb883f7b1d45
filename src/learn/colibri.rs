//! The use counts that colibri keeps beside a container: lines of three integers.
//!
//! `layer expert uses`, and headers whose first number is negative: `-1 layers experts` gives the
//! shape. Lines of its draft layer, which lies behind the model's, are left out.

use super::Uses;

/// The counts, for a model whose layers have so many experts; none if they aren't this model's.
pub fn parse(text: &str, experts: &[usize]) -> Option<Uses> {
    let mut uses: Uses = experts.iter().map(|&experts| vec![0; experts]).collect();
    let mut counted = false;
    for line in text.lines() {
        let numbers: Vec<i64> =
            line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let &[layer, expert, count] = numbers.as_slice() else { return None };
        if layer == -1 {
            let shape_fits = usize::try_from(expert) == Ok(experts.len())
                && experts.iter().max().map(|&most| most as i64) == Some(count);
            if !shape_fits {
                return None;
            }
        }
        if layer < 0 || usize::try_from(layer) == Ok(experts.len()) {
            continue;
        }
        let of_layer = uses.get_mut(usize::try_from(layer).ok()?)?;
        *of_layer.get_mut(usize::try_from(expert).ok()?)? = u32::try_from(count).ok()?;
        counted = true;
    }
    counted.then_some(uses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_by_layer_and_expert() {
        let text = "-1 2 3\n-2 1 3815245270\n1 0 7\n1 2 9\n2 1 5\n";
        assert_eq!(parse(text, &[0, 3]), Some(vec![vec![], vec![7, 0, 9]]));
        assert_eq!(parse("1 2 9\n", &[0, 3]), Some(vec![vec![], vec![0, 0, 9]]), "no header");
    }

    #[test]
    fn counts_of_another_model_are_left_out() {
        for other in ["", "-1 9 3\n1 0 7\n", "-1 2 4\n1 0 7\n", "1 3 7\n", "5 0 1\n", "0 0 1\n"] {
            assert_eq!(parse(other, &[0, 3]), None, "{other:?}");
        }
        for damaged in ["1 0\n", "1 0 x\n", "1 0 -4\n", "1 0 99999999999\n", "1 0 7 7\n"] {
            assert_eq!(parse(damaged, &[0, 3]), None, "{damaged:?}");
        }
    }
}
