//! One leader per name.

use armature_contracts::discovery::v1::{CampaignRequest, CampaignResponse, ResignRequest};
use armature_contracts::error::Reason;
use prost_types::Duration;

use crate::fleet::{Client, Fleet, pass, reason};

fn request(candidate_id: u64, seconds: i64) -> CampaignRequest {
    CampaignRequest { name: "planner".into(), candidate_id, ttl: Some(Duration { seconds, nanos: 0 }) }
}

async fn campaign(client: &mut Client, candidate: u64) -> CampaignResponse {
    client.campaign(request(candidate, 10)).await.unwrap().into_inner()
}

#[tokio::test(start_paused = true)]
async fn leadership_is_held_renewed_lost_and_given_up() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    let first = campaign(&mut client, 1).await;
    assert!(first.leader);
    pass(9).await;
    assert_eq!(campaign(&mut client, 1).await, first, "renewed in the same term");
    pass(9).await;
    let refused = campaign(&mut client, 2).await;
    assert_eq!(refused, CampaignResponse { leader: false, ..first });
    pass(2).await;
    let second = campaign(&mut client, 2).await;
    assert!(second.leader && second.term > first.term);
    let resign = |term| ResignRequest { name: "planner".into(), candidate_id: 2, term };
    client.resign(resign(first.term)).await.unwrap();
    assert!(!campaign(&mut client, 1).await.leader, "an old term resigns nothing");
    client.resign(resign(second.term)).await.unwrap();
    let third = campaign(&mut client, 1).await;
    assert!(third.leader && third.term > second.term);
}

#[tokio::test(start_paused = true)]
async fn malformed_campaigns_are_refused() {
    let server = Fleet::new().serve(Fleet::config("discovery")).await;
    let mut client = server.client();
    for wrong in [
        request(0, 10),
        request(1, 0),
        request(1, 61),
        CampaignRequest { ttl: None, ..request(1, 1) },
        CampaignRequest { name: String::new(), ..request(1, 1) },
    ] {
        assert_eq!(reason(client.campaign(wrong).await), Reason::InvalidArgument);
    }
}
