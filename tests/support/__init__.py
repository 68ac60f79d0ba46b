"""What tests share: models, samples, servers, forgers, strategies."""
