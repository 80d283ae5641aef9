;;; epitome.el --- Epitome for agent-shell -*- lexical-binding: t; -*-

(with-eval-after-load 'agent-shell
  (add-to-list
   'agent-shell-agent-configs
   (agent-shell-make-agent-config
    :identifier 'epitome
    :mode-line-name "Epitome"
    :buffer-name "Epitome"
    :shell-prompt "Epitome> "
    :shell-prompt-regexp "Epitome> "
    :client-maker (lambda (buffer)
                    (agent-shell--make-acp-client
                     :command "/absolute/path/to/epitome"
                     :command-params '("acp")
                     :context-buffer buffer))
    :install-instructions "Put the absolute path of epitome into epitome.el.")))

;; Shows the whole conversation again when a session is resumed.
(setq agent-shell-session-restore-verbosity 'full)

;;; epitome.el ends here
