//! Answers that took a walk over all connections or streams, and that are good for a while.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_protocol::OperatorQuestion;
use serde_json::{Value, json};

/// The answers to the last questions that took a walk.
#[derive(Debug, Default)]
pub(super) struct RecentAnswers(VecDeque<(OperatorQuestion, Kept<Value>)>);

/// Something that took a walk, and is good for a while.
#[derive(Debug)]
pub(super) struct Kept<T>(Option<KeptValue<T>>);

#[derive(Debug)]
struct KeptValue<T> {
    value: Arc<T>,
    made: Instant,
    good_for: Duration,
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Kept(None)
    }
}

impl<T> Kept<T> {
    /// What is kept, while it is good.
    pub(super) fn get(&self, now: Instant) -> Option<Arc<T>> {
        let kept = self.0.as_ref()?;
        let age = now.saturating_duration_since(kept.made);
        (age < kept.good_for).then(|| Arc::clone(&kept.value))
    }

    /// Keeps a value, for a time that follows from how long it took.
    pub(super) fn keep(&mut self, value: T, (begun, ended): (Instant, Instant)) -> Arc<T> {
        let took = ended.saturating_duration_since(begun);
        let value = Arc::new(value);
        self.0 = Some(KeptValue {
            value: Arc::clone(&value),
            made: ended,
            good_for: (took * WALK_SHARE).clamp(GOOD_FOR_MIN, GOOD_FOR_MAX),
        });
        value
    }

    fn age(&self, now: Instant) -> Duration {
        let made = self.0.as_ref().map_or(now, |kept| kept.made);
        now.saturating_duration_since(made)
    }
}

impl RecentAnswers {
    /// The answer to a question, if one is good still. It says how old it is.
    pub(super) fn find(&self, question: &OperatorQuestion, now: Instant) -> Option<Value> {
        let (_, kept) = self.0.iter().find(|(known, _)| known == question)?;
        Some(aged(&*kept.get(now)?, kept.age(now)))
    }

    /// Keeps an answer.
    pub(super) fn keep(
        &mut self,
        question: OperatorQuestion,
        answer: Value,
        took: (Instant, Instant),
    ) -> Value {
        self.0.retain(|(known, _)| *known != question);
        if self.0.len() >= ANSWERS_MAX {
            self.0.pop_front();
        }
        let mut kept = Kept::default();
        let answer = kept.keep(answer, took);
        self.0.push_back((question, kept));
        aged(&answer, Duration::ZERO)
    }
}

fn aged(answer: &Value, age: Duration) -> Value {
    let mut answer = answer.clone();
    answer["ageSeconds"] = json!(age.as_millis() as f64 / 1e3);
    answer
}

/// An answer is good for so many times as long as it took.
const WALK_SHARE: u32 = 100;

/// However little or much it took.
const GOOD_FOR_MIN: Duration = Duration::from_secs(1);
const GOOD_FOR_MAX: Duration = Duration::from_secs(60);

/// Answers that are kept.
const ANSWERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_good_for_as_long_as_its_cost_says() {
        let mut recent = RecentAnswers::default();
        let begun = Instant::now();
        let ms = |ms| begun + Duration::from_millis(ms);
        recent.keep(OperatorQuestion::Doctor, json!({"a": 1}), (begun, ms(50)));
        assert_eq!(recent.find(&OperatorQuestion::Fleet, ms(50)), None);
        let found = recent.find(&OperatorQuestion::Doctor, ms(550)).unwrap();
        assert_eq!(found, json!({"a": 1, "ageSeconds": 0.5}));
        assert!(recent.find(&OperatorQuestion::Doctor, ms(5_049)).is_some());
        assert_eq!(recent.find(&OperatorQuestion::Doctor, ms(5_050)), None);
        recent.keep(OperatorQuestion::Doctor, json!({}), (begun, ms(0)));
        assert!(recent.find(&OperatorQuestion::Doctor, ms(999)).is_some());
        assert_eq!(recent.find(&OperatorQuestion::Doctor, ms(1_000)), None);
        recent.keep(OperatorQuestion::Doctor, json!({}), (begun, ms(90_000)));
        assert_eq!(recent.find(&OperatorQuestion::Doctor, ms(150_000)), None);
    }

    #[test]
    fn few_answers_are_kept() {
        let mut recent = RecentAnswers::default();
        let now = Instant::now();
        for limit in 0..ANSWERS_MAX + 3 {
            recent.keep(OperatorQuestion::Refusals(limit), json!({}), (now, now));
        }
        assert_eq!(recent.0.len(), ANSWERS_MAX);
        assert_eq!(recent.find(&OperatorQuestion::Refusals(2), now), None);
        assert!(recent.find(&OperatorQuestion::Refusals(3), now).is_some());
    }
}
