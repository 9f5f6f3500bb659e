//! Samples the queue and the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_mailbox::Sender;
use serde::Serialize;

use crate::BenchError;
use crate::machine::process_bytes;

/// The figures of one moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Sample {
    /// Seconds since the first record was sent.
    pub(super) seconds: f64,
    /// Records that wait or are in work.
    pub(super) queue_records: usize,
    /// Their weight in bytes.
    pub(super) queue_bytes: usize,
    /// Anonymous memory of the whole process, in bytes.
    pub(super) process_bytes: u64,
}

/// A thread that samples.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Watch {
    /// Begins to sample.
    pub(super) fn start<T: Send + 'static>(queue: Sender<T>) -> Result<Self, BenchError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let begun = Instant::now();
        let thread = std::thread::Builder::new()
            .name("watch".into())
            .spawn(move || {
                let mut samples = vec![sample(&queue, begun)];
                while !stopped.load(Ordering::Acquire) {
                    std::thread::park_timeout(INTERVAL);
                    samples.push(sample(&queue, begun));
                }
                // Of the end, however short the run was.
                samples.push(sample(&queue, begun));
                samples
            })
            .map_err(BenchError::system("start a thread"))?;
        Ok(Self { stop, thread })
    }

    /// The samples; the last one is taken now.
    pub(super) fn end(self) -> Result<Vec<Sample>, BenchError> {
        self.stop.store(true, Ordering::Release);
        self.thread.thread().unpark();
        self.thread.join().map_err(|_| BenchError::Thread("watch"))
    }
}

/// No more than about `kept` of them: of each stretch of time the one with the longest queue, and the last.
pub(super) fn thinned(samples: Vec<Sample>, kept: usize) -> Vec<Sample> {
    let stretch = samples.len().div_ceil(kept.max(1)).max(1);
    let longest = |stretch: &[Sample]| stretch.iter().max_by_key(|s| s.queue_records).copied();
    let mut thinned: Vec<_> = samples.chunks(stretch).filter_map(longest).collect();
    if let (Some(last), true) = (samples.last(), stretch > 1) {
        thinned.push(*last);
    }
    thinned
}

fn sample<T>(queue: &Sender<T>, begun: Instant) -> Sample {
    let gauge = queue.gauge();
    Sample {
        seconds: begun.elapsed().as_secs_f64(),
        queue_records: gauge.depth(),
        queue_bytes: gauge.bytes(),
        process_bytes: process_bytes(),
    }
}

/// Time between two looks: short enough for a run of a second, long enough not to be part of its cost.
const INTERVAL: Duration = Duration::from_millis(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_over_at_once_is_seen_from_its_beginning_to_its_end() {
        for _ in 0..100 {
            let bounds = encke_mailbox::Bounds::default();
            let (sender, mut receiver) = encke_mailbox::mailbox("test", bounds);
            sender.send(encke_mailbox::Lane::Data, (), 1).unwrap();
            let watch = Watch::start(sender).unwrap();
            receiver.drain(&mut Vec::new());
            receiver.handled(1);
            let samples = watch.end().unwrap();
            assert!(samples.len() >= 2);
            assert_eq!(samples.last().unwrap().queue_records, 0);
        }
    }

    #[test]
    fn what_is_left_out_is_never_the_longest_queue_or_the_end() {
        let sample = |n: usize| Sample {
            seconds: n as f64,
            queue_records: if n == 555 { 9_000 } else { n % 7 },
            queue_bytes: 0,
            process_bytes: 0,
        };
        let all: Vec<_> = (0..1_000).map(sample).collect();
        let few = thinned(all.clone(), 100);
        assert!(few.len() <= 101, "{}", few.len());
        assert!(few.is_sorted_by(|a, b| a.seconds <= b.seconds));
        assert!(few.iter().any(|s| s.queue_records == 9_000));
        assert_eq!(few.last().map(|s| s.seconds), Some(999.0));
        assert_eq!(thinned(all, 5_000).len(), 1_000);
    }
}
