//! The server's `/metrics`, read back.

use std::collections::HashMap;

/// The figures of one moment by their names, added up over their labels, the sums and counts of histograms among them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scrape {
    values: HashMap<String, f64>,
}

impl Scrape {
    /// Reads the Prometheus text format; what it does not understand it leaves out.
    pub(crate) fn parse(text: &str) -> Self {
        let mut values = HashMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((name, value)) = figure(line.trim()) {
                *values.entry(name.to_owned()).or_default() += value;
            }
        }
        Self { values }
    }

    /// A figure by its name; 0 if there is none.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(0.0)
    }

    /// How much a figure has grown since an earlier moment.
    pub(crate) fn since(&self, earlier: &Self, name: &str) -> f64 {
        self.value(name) - earlier.value(name)
    }

    /// The mean of what a histogram has taken in since an earlier moment.
    pub(crate) fn mean_since(&self, earlier: &Self, histogram: &str) -> Option<f64> {
        let count = self.since(earlier, &format!("{histogram}_count"));
        let sum = self.since(earlier, &format!("{histogram}_sum"));
        (count > 0.0).then_some(sum / count)
    }
}

/// A line's name without its labels, and its value.
fn figure(line: &str) -> Option<(&str, f64)> {
    let (name, rest) = match line.split_once('{') {
        Some((name, rest)) => (name, rest.rsplit_once('}')?.1),
        None => line.split_once(' ')?,
    };
    // A time may follow the value.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP encke_batch_records Records in one commit.
# TYPE encke_batch_records histogram
encke_batch_records_bucket{le=\"1\"} 3
encke_batch_records_bucket{le=\"+Inf\"} 5
encke_batch_records_sum 42
encke_batch_records_count 5
encke_mailbox_depth{mailbox=\"sequencer\"} 7
encke_mailbox_depth{mailbox=\"a b\"} 2 1700000000000
encke_streams 2 1700000000000
nonsense
also nonsense
";

    #[test]
    fn figures_are_found_and_added_up_over_their_labels() {
        let scrape = Scrape::parse(TEXT);
        assert_eq!(scrape.value("encke_streams"), 2.0);
        assert_eq!(scrape.value("encke_batch_records_sum"), 42.0);
        assert_eq!(scrape.value("encke_mailbox_depth"), 9.0);
        assert_eq!(scrape.value("also"), 0.0);
    }

    #[test]
    fn histograms_have_means_between_two_moments() {
        let before = Scrape::parse("h_sum 10\nh_count 2\n");
        let after = Scrape::parse("h_sum 40\nh_count 5\n");
        assert_eq!(after.mean_since(&before, "h"), Some(10.0));
        assert_eq!(after.mean_since(&after, "h"), None);
        assert_eq!(after.mean_since(&before, "other"), None);
        assert_eq!(Scrape::default().mean_since(&Scrape::default(), "h"), None);
    }
}
