//! Whether other people use the server: a probe is a load, and its numbers would be of both.

use dialects::metrics::{Metric, parse};
use serde::Serialize;
use serde_json::Value;

use crate::client::Client;

/// Requests of others before the probe began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Activity {
    /// Requests being answered.
    pub running: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Which route said so.
    pub source: &'static str,
}

/// Asks the routes that say it, in turn; `None` if none does.
pub(crate) async fn activity(client: &Client) -> Option<Activity> {
    if let Ok(text) = client.get("/metrics").await
        && let Some(activity) = from_metrics(&text)
    {
        return Some(activity);
    }
    for (path, read) in [("/v1/loads", from_loads as fn(&Value) -> _), ("/slots", from_slots)] {
        let body = client.get(path).await.ok().and_then(|text| serde_json::from_str(&text).ok());
        if let Some(activity) = body.as_ref().and_then(read) {
            return Some(activity);
        }
    }
    None
}

fn from_metrics(text: &str) -> Option<Activity> {
    let scrape = parse(text);
    let running = scrape.get(Metric::Running)?;
    let waiting = scrape.get(Metric::Waiting).unwrap_or(0.0);
    Some(Activity { running, waiting, source: "/metrics" })
}

/// SGLang: one entry per replica.
fn from_loads(body: &Value) -> Option<Activity> {
    let loads = body.get("loads").unwrap_or(body).as_array()?;
    let sum = |name: &str| loads.iter().map(|load| load[name].as_f64()).sum::<Option<f64>>();
    let running = sum("num_running_reqs").filter(|_| !loads.is_empty())?;
    let waiting = sum("num_waiting_reqs").unwrap_or(0.0);
    Some(Activity { running, waiting, source: "/v1/loads" })
}

/// llama.cpp: one entry per slot.
fn from_slots(body: &Value) -> Option<Activity> {
    let slots = body.as_array().filter(|slots| !slots.is_empty())?;
    let busy: Option<Vec<bool>> =
        slots.iter().map(|slot| slot["is_processing"].as_bool()).collect();
    let running = busy?.into_iter().filter(|busy| *busy).count() as f64;
    Some(Activity { running, waiting: 0.0, source: "/slots" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{from_loads, from_metrics, from_slots};

    #[test]
    fn every_engine_says_it_somewhere() {
        let found = from_metrics("vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n");
        assert_eq!(found.map(|a| (a.running, a.waiting)), Some((3.0, 2.0)));
        let loads = json!({"loads": [{"num_running_reqs": 1, "num_waiting_reqs": 0},
                                     {"num_running_reqs": 4, "num_waiting_reqs": 5}]});
        assert_eq!(from_loads(&loads).map(|a| (a.running, a.waiting)), Some((5.0, 5.0)));
        let slots = json!([{"is_processing": true}, {"is_processing": false}]);
        assert_eq!(from_slots(&slots).map(|a| a.running), Some(1.0));
    }

    #[test]
    fn what_says_nothing_is_not_idle() {
        assert_eq!(from_metrics("# nothing\n"), None);
        assert_eq!(from_loads(&json!({"loads": []})), None);
        assert_eq!(from_loads(&json!([{"other": 1}])), None);
        assert_eq!(from_slots(&json!([])), None);
        assert_eq!(from_slots(&json!({"error": "off"})), None);
    }
}
