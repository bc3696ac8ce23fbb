//! The extension's service over a [`Provider`] that has one.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::{Error, Provider, text};
use crate::extension::{Notice, Offer, Resources};
use crate::model::Features;
use crate::model::InstanceId;
use crate::protocol::extension::instance_group_extension_server::InstanceGroupExtension;
use crate::protocol::extension::{
    self as wire, DescribeRequest, DescribeResponse, HookRequest, HookResponse, HostKeysRequest, HostKeysResponse,
    NoticesRequest, OffersRequest, OffersResponse, ResourcesRequest, ResourcesResponse,
};

/// Notices, as they arise.
pub type Notices = Pin<Box<dyn Stream<Item = Notice> + Send>>;

/// What a provider offers beside the protocol. Everything has a default; [`Extension::features`] says what is meant.
#[async_trait]
pub trait Extension: Send + Sync {
    /// Which of the calls below mean something. The host makes no others.
    fn features(&self) -> Features;

    /// What can be had, and at which price.
    ///
    /// # Errors
    /// The provider cannot be asked.
    async fn offers(&self) -> Result<Vec<Offer>, Error> {
        Ok(Vec::new())
    }

    /// Interruptions and stock-outs from now on, as they arise. Each caller has all of them.
    fn notices(&self) -> Notices {
        Box::pin(futures::stream::pending())
    }

    /// What these instances use now; one that cannot be measured is left out.
    ///
    /// # Errors
    /// None can be measured.
    async fn resources(&self, _ids: Vec<InstanceId>) -> Result<Vec<Resources>, Error> {
        Ok(Vec::new())
    }

    /// Fingerprints (`SHA256:...`) of the keys by which an instance's SSH server shows who it is.
    ///
    /// # Errors
    /// It is unknown, or has none yet.
    async fn host_keys(&self, _id: InstanceId) -> Result<Vec<String>, Error> {
        Ok(Vec::new())
    }

    /// Before a job runs on an instance.
    ///
    /// # Errors
    /// The job does not run there: a failure of the system, with these words.
    async fn prepare(&self, _id: InstanceId, _job: String) -> Result<(), Error> {
        Ok(())
    }

    /// After a job ran on an instance, however it ended.
    ///
    /// # Errors
    /// The instance is not used again.
    async fn finish(&self, _id: InstanceId, _job: String) -> Result<(), Error> {
        Ok(())
    }
}

/// The service.
pub(super) struct Service<P> {
    pub(super) provider: Arc<OnceLock<P>>,
}

impl<P: Provider> Service<P> {
    /// A provider without an extension looks like a plugin that never heard of it.
    fn extension(&self) -> Result<&dyn Extension, Status> {
        let provider = self.provider.get().ok_or_else(|| Status::failed_precondition("Init was not called"))?;
        provider.extension().ok_or_else(|| Status::unimplemented("this plugin has no extension"))
    }
}

fn unknown(error: &Error) -> Status {
    Status::unknown(text(error.as_ref()))
}

#[tonic::async_trait]
impl<P: Provider> InstanceGroupExtension for Service<P> {
    type NoticesStream = Pin<Box<dyn Stream<Item = Result<wire::Notice, Status>> + Send>>;

    async fn describe(&self, _: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        Ok(Response::new(self.extension()?.features().into()))
    }

    async fn offers(&self, _: Request<OffersRequest>) -> Result<Response<OffersResponse>, Status> {
        let offers = self.extension()?.offers().await.map_err(|error| unknown(&error))?;
        Ok(Response::new(OffersResponse { offers: offers.into_iter().map(Into::into).collect() }))
    }

    async fn notices(&self, _: Request<NoticesRequest>) -> Result<Response<Self::NoticesStream>, Status> {
        let notices = self.extension()?.notices();
        Ok(Response::new(Box::pin(notices.map(|notice| Ok(notice.into())))))
    }

    async fn resources(&self, request: Request<ResourcesRequest>) -> Result<Response<ResourcesResponse>, Status> {
        let ids = request.into_inner().instances.into_iter().map(InstanceId::from).collect();
        let resources = self.extension()?.resources(ids).await.map_err(|error| unknown(&error))?;
        Ok(Response::new(ResourcesResponse { resources: resources.into_iter().map(Into::into).collect() }))
    }

    async fn host_keys(&self, request: Request<HostKeysRequest>) -> Result<Response<HostKeysResponse>, Status> {
        let id = InstanceId::from(request.into_inner().instance);
        let fingerprints = self.extension()?.host_keys(id).await.map_err(|error| unknown(&error))?;
        Ok(Response::new(HostKeysResponse { fingerprints }))
    }

    async fn prepare(&self, request: Request<HookRequest>) -> Result<Response<HookResponse>, Status> {
        let HookRequest { instance, job } = request.into_inner();
        self.extension()?.prepare(instance.into(), job).await.map_err(|error| unknown(&error))?;
        Ok(Response::new(HookResponse {}))
    }

    async fn finish(&self, request: Request<HookRequest>) -> Result<Response<HookResponse>, Status> {
        let HookRequest { instance, job } = request.into_inner();
        self.extension()?.finish(instance.into(), job).await.map_err(|error| unknown(&error))?;
        Ok(Response::new(HookResponse {}))
    }
}
