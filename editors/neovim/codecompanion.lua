require("codecompanion").setup({
  adapters = {
    acp = {
      epitome = function()
        -- CodeCompanion has no empty ACP adapter; this one has no login either.
        return require("codecompanion.adapters").extend("opencode", {
          name = "epitome",
          formatted_name = "Epitome",
          commands = {
            default = { "/absolute/path/to/epitome", "acp" },
          },
          defaults = {
            mcpServers = "inherit_from_config",
            timeout = 20000,
          },
        })
      end,
    },
  },
  interactions = {
    chat = { adapter = "epitome" },
  },
})
