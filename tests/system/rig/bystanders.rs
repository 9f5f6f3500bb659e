//! Well-behaved clients, which check that a test does not disturb them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Encke, JSON, path};

/// A publisher and a subscriber that run while other clients misbehave.
pub(crate) struct Bystanders {
    over: Arc<AtomicBool>,
    publisher: JoinHandle<u64>,
    subscriber: JoinHandle<Vec<u64>>,
}

impl Bystanders {
    pub(crate) fn of(encke: &Encke) -> Bystanders {
        encke.create("bystanders");
        let mut subscriber = encke.subscribe("bystanders", "-1");
        let mut connection = encke.connect();
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let publisher = std::thread::spawn(move || {
            let target = path("bystanders");
            for number in 0.. {
                let last = until.load(Ordering::Relaxed);
                let close = if last { "Stream-Closed: true" } else { "X: y" };
                let body = number.to_string();
                let answer = connection.ask("POST", &target, &[JSON, close], body.as_bytes());
                assert_eq!(answer.status, 204, "{answer:?}");
                if last {
                    return number + 1;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            unreachable!("numbers don't end");
        });
        Bystanders {
            over,
            publisher,
            subscriber: std::thread::spawn(move || {
                let seen = subscriber.rest();
                assert!(subscriber.closed, "the subscriber got the end");
                seen
            }),
        }
    }

    /// Ends both: the subscriber got exactly what was published.
    pub(crate) fn were_not_disturbed(self) {
        self.over.store(true, Ordering::Relaxed);
        let published = self.publisher.join().expect("the publisher was served");
        let seen = self.subscriber.join().expect("the subscriber was served");
        assert_eq!(seen, (0..published).collect::<Vec<_>>());
    }
}
