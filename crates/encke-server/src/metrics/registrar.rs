//! Makes metrics and registers them, and sets counters to what is counted elsewhere.

use prometheus::core::Collector;
use prometheus::{
    CounterVec, Error, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// Makes metrics in a registry. It fails if the registry has a metric of the same name.
pub(super) struct Registrar<'a>(pub(super) &'a Registry);

impl Registrar<'_> {
    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, Error> {
        self.registered(IntGauge::new(name, help))
    }

    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, Error> {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Gauges that show seconds.
    pub(super) fn seconds(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GaugeVec, Error> {
        self.registered(GaugeVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, Error> {
        self.registered(IntCounter::new(name, help))
    }

    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, Error> {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Counters that count seconds.
    pub(super) fn total_seconds(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<CounterVec, Error> {
        self.registered(CounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
    ) -> Result<Histogram, Error> {
        let opts = HistogramOpts::new(name, help).buckets(buckets);
        self.registered(Histogram::with_opts(opts))
    }

    fn registered<M: Collector + Clone + 'static>(
        &self,
        metric: Result<M, Error>,
    ) -> Result<M, Error> {
        let metric = metric?;
        self.0.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

/// Sets a counter to a total that is counted elsewhere. A lower total than before has begun anew, such as that of the next dispatcher.
pub(super) fn set_total(counter: &IntCounter, total: u64) {
    if total < counter.get() {
        counter.reset();
    }
    counter.inc_by(total.saturating_sub(counter.get()));
}
