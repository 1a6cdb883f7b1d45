//! Stop strings: where an answer is cut, also when a stop string comes in several pieces.
//!
//! Text goes in as it comes, and comes out as soon as no stop string can begin in it. The stop
//! string that is complete first ends the answer, so the outcome doesn't depend on how the text was
//! cut into pieces.

/// The stop strings of one answer and the text that may be the beginning of one.
pub struct Stops {
    stops: Vec<String>,
    held: String,
}

impl Stops {
    /// Stop strings; empty ones stop nothing.
    pub fn new(stops: &[String]) -> Stops {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Stops { stops, held: String::new() }
    }

    /// Takes text; gives what is certain, and the stop string that ended the answer, if one did.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        if self.stops.is_empty() {
            return (text.to_owned(), None);
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| {
            let begin = self.held.find(stop.as_str())?;
            Some((begin + stop.len(), begin, stop))
        });
        // The first that is complete; of those that end together, the longest.
        if let Some((_, begin, stop)) = found.min() {
            let stop = stop.clone();
            self.held.truncate(begin);
            return (std::mem::take(&mut self.held), Some(stop));
        }
        let keep = self.longest_beginning();
        let certain = self.held.len() - keep;
        (self.held.drain(..certain).collect(), None)
    }

    /// The answer ended otherwise: what was held back belongs to it.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Bytes at the end of the held text that a stop string may begin with.
    fn longest_beginning(&self) -> usize {
        let begins = |stop: &String| {
            let most = self.held.len().min(stop.len() - 1);
            let fits = |&length: &usize| {
                stop.is_char_boundary(length) && self.held.ends_with(&stop[..length])
            };
            (1..=most).rev().find(fits).unwrap_or(0)
        };
        self.stops.iter().map(begins).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut stops = Stops::new(&stops);
        let mut out = String::new();
        for piece in pieces {
            let (text, stop) = stops.push(piece);
            out += &text;
            if stop.is_some() {
                return (out, stop);
            }
        }
        (out + &stops.finish(), None)
    }

    #[test]
    fn stop_string_over_several_pieces_cuts_before_it() {
        let cut = run(&["<END>"], &["hello <", "EN", "D> more"]);
        assert_eq!(cut, ("hello ".to_owned(), Some("<END>".to_owned())));
        assert_eq!(run(&["<END>"], &["hello <EN", "DING"]), ("hello <ENDING".to_owned(), None));
    }

    #[test]
    fn text_that_can_be_no_stop_string_comes_at_once() {
        let mut stops = Stops::new(&["abc".to_owned()]);
        assert_eq!(stops.push("xyab"), ("xy".to_owned(), None));
        assert_eq!(stops.push("d"), ("abd".to_owned(), None));
    }

    #[test]
    fn characters_are_never_cut() {
        assert_eq!(run(&["é!"], &["caf", "é", "?"]), ("café?".to_owned(), None));
        assert_eq!(run(&["é!"], &["caf", "é", "!"]).0, "caf");
    }

    proptest! {
        #[test]
        fn outcome_does_not_depend_on_how_text_is_cut(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 1..4),
            cuts in prop::collection::vec(any::<bool>(), 24),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut pieces = vec![String::new()];
            for (character, cut) in text.chars().zip(cuts) {
                pieces.last_mut().unwrap().push(character);
                if cut {
                    pieces.push(String::new());
                }
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(&stops, &[&text]), run(&stops, &pieces));
        }
    }
}
