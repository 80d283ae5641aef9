//! The credentials of clouds: AWS for Amazon Bedrock, Google for Vertex AI.

pub mod aws;
pub mod google;
