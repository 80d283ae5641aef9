require("avante").setup({
  provider = "epitome",
  acp_providers = {
    epitome = {
      command = "/absolute/path/to/epitome",
      args = { "acp" },
      -- avante passes only PATH: name here what else is needed.
      env = {
        HOME = os.getenv("HOME"),
        ANTHROPIC_API_KEY = os.getenv("ANTHROPIC_API_KEY"),
        OPENAI_API_KEY = os.getenv("OPENAI_API_KEY"),
      },
    },
  },
})
