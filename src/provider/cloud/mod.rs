//! Credentials of cloud accounts: AWS for Amazon Bedrock, Google for Vertex AI.

pub mod aws;
pub mod google;
