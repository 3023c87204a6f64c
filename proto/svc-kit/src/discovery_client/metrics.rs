//! What a view looks like, read at each scrape.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::instance::Status;
use super::watcher::Members;

const STATUSES: [(Status, &str); 5] = [
    (Status::Unspecified, "unspecified"),
    (Status::Starting, "starting"),
    (Status::Ready, "ready"),
    (Status::Draining, "draining"),
    (Status::Suspect, "suspect"),
];

impl Members {
    /// Shows `discovery_live` (1 while connected) and `discovery_instances` by status.
    pub fn register_metrics(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }
}

impl Collector for Members {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let view = self.view();
        let help = "Whether discovery is connected; otherwise the last view stands";
        let live = encoder.encode_descriptor("discovery_live", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(view.live)).encode(live)?;
        let help = "Instances in the view by effective status";
        let mut instances =
            encoder.encode_descriptor("discovery_instances", help, None, MetricType::Gauge)?;
        for (status, name) in STATUSES {
            let count = view.instances.values().filter(|instance| instance.status == status).count();
            let gauge = ConstGauge::new(i64::try_from(count).unwrap_or(i64::MAX));
            gauge.encode(instances.encode_family(&[("status", name)])?)?;
        }
        Ok(())
    }
}
