//! The response to a subscriber of several streams.

use super::encode::MergedEvents;
use super::lines::{self, MergedLines};
use super::merge_plan::{MergePlan, OnPlanned};
use crate::action::{Action, Feed, Subscription};
use crate::encoder::{MergeEncoder, MergeEncoderId};
use crate::live_format::LiveFormat;
use crate::response::{Body, Response};

/// What a request says of its response, while its feed is planned.
#[derive(Debug)]
pub(super) struct FeedResponse {
    pub(super) format: LiveFormat,
    pub(super) encoder: MergeEncoderId,
    pub(super) is_head: bool,
    /// The client goes on behind a position.
    pub(super) goes_on: bool,
    /// Remarks for people.
    pub(super) warnings: Vec<String>,
}

impl OnPlanned for FeedResponse {
    fn planned(self: Box<Self>, plan: Result<MergePlan, Response>) -> Action {
        match plan {
            Ok(plan) => self.begin(plan),
            Err(refused) => Action::Respond(refused),
        }
    }
}

impl FeedResponse {
    fn begin(self, plan: MergePlan) -> Action {
        if plan.sources.is_empty() && self.goes_on {
            // This status stops a browser's EventSource (HTML, section 9.2.3).
            return Action::Respond(Response::shared(204));
        }
        // What comes before the records is the same with times and without.
        let encoder: &dyn MergeEncoder = match self.format {
            LiveFormat::Events => &MergedEvents { has_times: false },
            LiveFormat::Lines => &MergedLines { has_times: false },
        };
        let mut first = Vec::new();
        encoder.position("", plan.position(), &mut first);
        for warning in &self.warnings {
            match self.format {
                LiveFormat::Events => {
                    first.extend_from_slice(format!(": {warning}\n\n").as_bytes());
                }
                LiveFormat::Lines => lines::warning(warning, &mut first),
            }
        }
        for over in &plan.over {
            encoder.ended("", &over.name, over.end, None, &mut first);
        }
        let response = self.format.head().field("Vary", "Accept");
        if plan.sources.is_empty() {
            return Action::Respond(response.body(first));
        }
        let response = response.body(Body::Open(first));
        if self.is_head {
            return Action::Respond(response);
        }
        Action::Subscribe(Subscription {
            beside: None,
            response,
            feed: Feed::Merged {
                sources: plan.sources,
                after: plan.after,
                generations: plan.generations.into(),
                names: plan.names,
                encoder: self.encoder,
                label: "".into(),
                ended: plan.ended,
            },
        })
    }
}
