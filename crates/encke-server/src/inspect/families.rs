//! Reads values out of gathered metrics.

use prometheus::proto::{MetricFamily, MetricType};

/// Gathered metrics.
pub(super) struct Families(pub(super) Vec<MetricFamily>);

impl Families {
    /// The value of a metric without labels, or the sum over all labels.
    pub(super) fn value(&self, name: &str) -> f64 {
        self.labelled(name).map(|(_, value)| value).sum()
    }

    /// The values of a metric by its first label.
    pub(super) fn labelled<'f>(&'f self, name: &str) -> impl Iterator<Item = (&'f str, f64)> {
        let family = self.0.iter().find(|family| family.name() == name);
        family.into_iter().flat_map(|family| {
            family.get_metric().iter().map(|metric| {
                let label = metric.get_label().first();
                let value = match family.get_field_type() {
                    MetricType::COUNTER => metric.get_counter().get_value(),
                    _ => metric.get_gauge().get_value(),
                };
                (label.map_or("", |label| label.value()), value)
            })
        })
    }
}
