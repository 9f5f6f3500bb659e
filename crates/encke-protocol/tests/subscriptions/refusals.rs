//! The refusals of the dispatcher and of the subscriptions.

use encke_jobs::JobError;
use encke_protocol::DispatchResponse;
use encke_stream::Refusal;
use encke_subscriptions::{SubscriptionError, SubscriptionLimits, SubscriptionResponse};

use crate::server::{Server, TestSubscriptions};
use crate::{PULL, WEBHOOK, outcome, refused, send};

#[test]
fn refusals_have_the_codes_of_the_protocol() {
    let mut server = Server::default();
    let url = "https://10.0.0.1/".parse::<String>().unwrap();
    let config = WEBHOOK.replace("https://hooks.example/a", &url);
    let said = send(&mut server, "PUT /subscriptions/u", &config);
    assert_eq!(outcome(&said), refused(400, "WEBHOOK_URL_REJECTED"));
    send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    let other = WEBHOOK.replace("1000", "2000");
    let said = send(&mut server, "PUT /subscriptions/s", &other);
    assert_eq!(outcome(&said), refused(409, "SUBSCRIPTION_ALREADY_EXISTS"));
    let missing = refused(404, "SUBSCRIPTION_NOT_FOUND");
    for (line, content) in [
        ("GET /subscriptions/n", ""),
        ("POST /subscriptions/n/streams", r#"{"streams":["a"]}"#),
        ("DELETE /subscriptions/n/streams/a", ""),
        ("POST /subscriptions/n/claim", r#"{"worker":"w"}"#),
    ] {
        assert_eq!(
            outcome(&send(&mut server, line, content)),
            missing,
            "{line}"
        );
    }
    let said = send(
        &mut server,
        "POST /subscriptions/s/claim",
        r#"{"worker":"w"}"#,
    );
    assert_eq!(outcome(&said), refused(400, "INVALID_REQUEST"));
    for (why, status, code) in [
        (SubscriptionError::NoWebhooks, 400, "INVALID_REQUEST"),
        (SubscriptionError::RetentionIsSet, 403, "retention_is_set"),
        (
            SubscriptionError::TooManySubscriptions(1),
            507,
            "too_many_subscriptions",
        ),
        (SubscriptionError::TooManyLinks(1), 507, "too_many_links"),
        (
            SubscriptionError::TooManyLinksInAll(1),
            507,
            "too_many_links",
        ),
        (SubscriptionError::LookUp("disk".into()), 500, "unreadable"),
        (SubscriptionError::Overloaded, 503, "overloaded"),
        (SubscriptionError::Stopping, 503, "stopping"),
        (SubscriptionError::Log(Refusal::NoSpace), 507, "disk_full"),
        (
            SubscriptionError::Log(Refusal::NotDispatcher),
            503,
            "dispatcher_moved",
        ),
    ] {
        let response = SubscriptionResponse::Refused(why);
        let response = DispatchResponse::Subscription(Box::new(response));
        check_instead(&mut server, response, (status, code));
    }
    for (why, status, code) in [
        (JobError::Stopping, 503, "stopping"),
        (JobError::NoDispatcher, 503, "no_dispatcher"),
        (JobError::Overloaded, 503, "overloaded"),
        (JobError::CallerEnded, 401, "expired"),
    ] {
        check_instead(&mut server, DispatchResponse::Refused(why), (status, code));
    }
    check_instead(&mut server, DispatchResponse::Stopping, (503, "stopping"));
    check_instead(&mut server, DispatchResponse::Removed, (500, "internal"));
}

/// The response to a request to which the dispatcher responds with this.
fn check_instead(server: &mut Server, response: DispatchResponse, (status, code): (u16, &str)) {
    server.subscriptions.instead = Some(response);
    let said = send(server, "GET /subscriptions/s", "");
    assert_eq!(outcome(&said), refused(status, code));
    let again = (status == 503).then_some("1");
    assert_eq!(said.field("Retry-After"), again, "{code}");
    assert_eq!(
        said.field("WWW-Authenticate").is_some(),
        status == 401,
        "{code}"
    );
}

#[test]
fn webhooks_that_are_off_are_refused() {
    let mut server = Server::default();
    server.subscriptions = TestSubscriptions::new(
        SubscriptionLimits {
            deliveries_max: 0,
            ..SubscriptionLimits::default()
        },
        Default::default(),
    );
    let said = send(&mut server, "PUT /subscriptions/s", WEBHOOK);
    assert_eq!(outcome(&said), refused(400, "INVALID_REQUEST"));
    let said = send(&mut server, "PUT /subscriptions/s", PULL);
    assert_eq!(said.status, 201);
}
